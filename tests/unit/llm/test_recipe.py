from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers

from forebay.errors import InvalidOption, MissingPackage
from forebay.llm.adapters import Lora
from forebay.llm.models import ModelSpec
from forebay.llm.recipe import Recipe, rate_factor

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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lr": math.inf}, "lr=inf cannot train"),
        ({"weight_decay": math.nan}, "weight_decay=nan cannot train"),
        ({"weight_decay": -1}, "weight_decay=-1 cannot train"),
        ({"router_aux_loss_coef": math.nan}, "router_aux_loss_coef=nan cannot train"),
        ({"betas": (1.0, 0.9)}, r"betas=\(1.0, 0.9\) cannot train"),
        ({"algorithm": "sgd"}, "optimizer='sgd' is unknown"),
    ],
)
def test_numbers_that_cannot_train(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        Recipe(model=ModelSpec(name="tiny", vocab_size=300), **options)


@pytest.mark.parametrize("alpha", [0, math.nan, math.inf])
def test_an_adapter_that_is_scaled_to_nothing(alpha: float) -> None:
    with pytest.raises(InvalidOption, match=f"lora_alpha={alpha} cannot train"):
        Lora(alpha=alpha)


def test_the_kernel_of_liger_needs_its_package_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"model": ModelSpec(name="tiny", vocab_size=300), "loss_kernel": "liger"}
    with pytest.raises(MissingPackage, match=r"loss_kernel='liger' needs the package liger-kernel, "):
        Recipe(**options)
    monkeypatch.setattr("forebay.llm.recipe.require_package", lambda *_: None)
    with pytest.raises(InvalidOption, match="loss_kernel='liger' does not work with loss_chunk=0"):
        Recipe(**options, loss_chunk=0)
    with pytest.raises(InvalidOption, match="runs on GPUs only, and this worker trains on cpu"):
        Recipe(**options).build_model("cpu")
