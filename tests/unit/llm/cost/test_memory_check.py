"""Memory of a job's own device: a job of CPUs is judged alike on a machine with GPUs and without."""

from __future__ import annotations

import logging
import os

import pytest

from forebay.errors import InvalidOption
from forebay.llm.cost import memory_check
from forebay.llm.cost.memory import MemoryPlan
from forebay.llm.cost.memory_check import check_memory, local_memory, memory_plan
from forebay.llm.models import ModelSpec
from forebay.llm.recipe import Recipe

MAIN = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
GPU = 80 * 10**9


def with_gpus(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    monkeypatch.setattr(memory_check, "num_gpus", lambda: found)
    monkeypatch.setattr(memory_check, "gpu_memory", lambda: GPU if found else None)


@pytest.mark.parametrize(
    ("found", "gpus", "limit", "dtype"),
    [
        (0, None, MAIN, "fp32"),
        (0, 0, MAIN, "fp32"),
        (1, None, GPU, "bf16"),
        (1, 0, MAIN, "fp32"),
        (8, 1, GPU, "bf16"),
        (1, 0.5, GPU // 2, "bf16"),
        (0, 1, None, "bf16"),
    ],
)
def test_a_job_is_planned_for_its_own_device(
    monkeypatch: pytest.MonkeyPatch, found: int, gpus: float | None, limit: int | None, dtype: str
) -> None:
    with_gpus(monkeypatch, found)
    assert local_memory(gpus) == limit
    plan = memory_plan(Recipe(model=ModelSpec(name="tiny", vocab_size=300)), workers=1, seq_len=64, gpus=gpus)
    assert (plan.dtype, plan.gradient_checkpointing) == (dtype, dtype == "bf16")


def test_memory_of_gpus_elsewhere_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_gpus(monkeypatch, 0)
    plan = MemoryPlan(model="Llama-2-7B", workers=1, seq_len=4096)
    with caplog.at_level(logging.WARNING):
        check_memory(plan, gpus=1)
    assert "is not checked: its workers have GPUs, and this machine has none" in caplog.text
    with pytest.raises(InvalidOption, match="A device has"):
        check_memory(plan, "60GB", gpus=1)
