from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from forebay.llm.recipe import rate_factor

STEPS, WARM_UP = 40, 4


# By name: each process collects all tests, and an import of the schedules takes a CPU second.
@pytest.mark.parametrize(
    ("schedule", "theirs"), [("cosine", "cosine"), ("linear", "linear"), ("constant", "constant_with_warmup")]
)
def test_equal_batches_give_the_rates_of_transformers(schedule: Any, theirs: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = transformers.get_scheduler(theirs, optimizer, WARM_UP, STEPS)
    for step in range(STEPS):
        factor = rate_factor(step / STEPS, warmup=WARM_UP / STEPS, schedule=schedule)
        assert factor == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_ends_of_the_training() -> None:
    assert rate_factor(0.0, warmup=0.0, schedule="cosine") == 1.0
    assert rate_factor(1.0, warmup=1.0, schedule="linear") == 0.0
    assert rate_factor(0.5, warmup=1.0, schedule="cosine") == 0.5
