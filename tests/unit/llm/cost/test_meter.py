"""Tokens and FLOPs of packed batches, and rates of steps."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from forebay.data.loader.batch import Batch
from forebay.llm.adapters import Lora
from forebay.llm.chat.documents import Document
from forebay.llm.cost.flops import TokenFlops
from forebay.llm.cost.meter import (
    PEAK_FLOPS,
    Meter,
    device_peak,
    peak_memory,
    published_peak,
    reset_peak_memory,
    step_cost,
)
from forebay.llm.models import ModelSpec
from forebay.llm.packing import RowLayout, arrange, num_targets
from forebay.llm.recipe import Recipe
from forebay.training.state.metric import WeightedMean, scalar

FLOPS = TokenFlops(linear=100.0, squared=3.0)
CPU = torch.device("cpu")


def documents(lengths: list[int]) -> list[Document]:
    rng = np.random.default_rng(0)
    return [
        Document(rng.integers(3, 90, length).astype(np.int32), np.arange(length) >= length - 1) for length in lengths
    ]


def batch_of(packed: np.ndarray, weight: float = 1.0) -> Batch:
    arrays = {"tokens": torch.from_numpy(packed), "targets": torch.from_numpy(num_targets(packed))}
    return Batch(arrays, num_rows=len(packed), size=len(packed), weight=weight)


@pytest.mark.parametrize("packing", ["bfd", "none"])
def test_flops_of_packed_rows_are_those_of_each_document(packing) -> None:
    lengths = [2, 5, 31, 64, 17, 40, 3]
    rows = arrange(documents(lengths), RowLayout(seq_len=64, packing=packing))
    cost = step_cost(batch_of(rows), FLOPS)
    assert cost.tokens == rows.size
    assert cost.document_tokens == sum(lengths)
    assert float(cost.flops) == FLOPS.of(sum(lengths), sum(length**2 for length in lengths))
    of_targets = step_cost(batch_of(rows), replace(FLOPS, output=10.0), targets_only=True)
    assert float(of_targets.flops) == float(cost.flops) - 10.0 * (sum(lengths) - len(lengths))


def test_last_document_without_targets_counts_unless_the_row_ends_there() -> None:
    rows = arrange(documents([4, 4]), RowLayout(seq_len=8))
    assert step_cost(batch_of(rows & 0xFFFFFF | (rows & (1 << 24))), FLOPS).document_tokens == 8


def test_dummy_row_costs_nothing() -> None:
    rows = arrange(documents([4]), RowLayout(seq_len=8))
    assert step_cost(batch_of(rows, weight=0.0), FLOPS).flops == 0


def test_rates_are_means_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batch_of(arrange(documents([8, 6]), RowLayout(seq_len=8)))
    clock = iter([0.0, 2.0, 2.5, 10.0, 10.25])
    monkeypatch.setattr("forebay.llm.cost.meter.time.perf_counter", lambda: next(clock))
    meter = Meter(FLOPS, 1e6, CPU)
    first, second, third = (meter.step(rows) for _ in range(3))
    meter.restart()  # at 10.0, behind an evaluation
    fourth = meter.step(rows)
    assert isinstance(first["mfu"], WeightedMean) and first["mfu"].weight == 0
    rates = [float(scalar("tokens_per_s", each["tokens_per_s"])) for each in (second, third, fourth)]
    assert rates == [8.0, 32.0, 64.0]
    flops = FLOPS.of(8 + 6, 8**2 + 6**2)
    assert float(scalar("mfu", third["mfu"])) == pytest.approx(flops / 0.5 / 1e6)
    assert float(scalar("tflops_per_s", third["tflops_per_s"])) == pytest.approx(flops / 0.5 / 1e12)
    assert float(scalar("document_tokens_per_s", third["document_tokens_per_s"])) == 28.0
    assert scalar("peak_memory_bytes", third["peak_memory_bytes"]) > 1 << 20


def test_utilisation_is_left_out_without_a_peak_or_a_count() -> None:
    rows = batch_of(arrange(documents([8]), RowLayout(seq_len=8)))
    assert "mfu" not in Meter(FLOPS, None, CPU).step(rows)
    assert {*Meter(None, 1e12, CPU).step(rows)} == {"tokens_per_s", "document_tokens_per_s", "peak_memory_bytes"}


def test_meter_of_a_recipe() -> None:
    recipe = Recipe(model=ModelSpec(name="tiny", vocab_size=300), adapter=Lora(r=2))
    meter = Meter.of(recipe, CPU)
    assert "mfu" in meter.step(batch_of(arrange(documents([8]), RowLayout(seq_len=8))))


def test_model_that_cannot_be_counted_is_trained_without_utilisation(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter.of(Recipe(model=ModelSpec(name="/no/such/folder", vocab_size=300)), CPU)
    assert "mfu" not in meter.step(batch_of(arrange(documents([8]), RowLayout(seq_len=8))))
    assert "MFU is left out" in caplog.text


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA RTX A6000", "A6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GeForce RTX 4090", None),
        ("NVIDIA A1000", None),
    ],
)
def test_peaks_of_devices(name: str, peak: str | None) -> None:
    assert published_peak(name) == (None if peak is None else PEAK_FLOPS[peak])


def test_peak_of_a_cpu_is_measured() -> None:
    peak = device_peak(CPU, torch.float32)
    assert peak is not None and 1e8 < peak < 1e15
    assert device_peak(torch.device("meta"), torch.float32) is None


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of a process can be reset on Linux"
)
def test_peak_memory_is_that_of_the_run() -> None:
    earlier = torch.ones(64 << 20)
    peak = peak_memory(CPU)
    del earlier
    reset_peak_memory(CPU)
    assert peak_memory(CPU) < peak - (128 << 20)
