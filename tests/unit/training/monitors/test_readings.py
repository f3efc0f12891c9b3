"""Metrics of steps come back unchanged, whatever happened to their tensors since."""

from __future__ import annotations

import pytest
import torch

from forebay.training.monitors.readings import CHUNK, DeferredMetrics, Reading


def test_numbers_come_back_once_in_order() -> None:
    readings = DeferredMetrics()
    readings.add(1, "loss", 0.5)
    readings.add(1, "norm", torch.tensor([2.0]))
    readings.add(2, "loss", torch.tensor(0.25, dtype=torch.float16))
    assert readings.read_all() == [Reading(1, "loss", 0.5), Reading(1, "norm", 2.0), Reading(2, "loss", 0.25)]
    assert readings.read_all() == []


def test_numbers_on_devices_are_copied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, copies = DeferredMetrics(), list[int]()
    original = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (copies.append(len(tensor)), original(tensor))[1])
    for step in range(20):
        readings.add(step, "loss", torch.tensor(step))
        readings.add(step, "weight", 1.0)
    assert [each.value for each in readings.read_all()] == [value for step in range(20) for value in (step, 1.0)]
    assert copies == [20]


def test_more_than_a_chunk() -> None:
    readings = DeferredMetrics()
    for step in range(2 * CHUNK + 3):
        readings.add(step, "loss", torch.tensor(float(step)))
    assert [(reading.step, reading.value) for reading in readings.read_all()] == [(s, s) for s in range(2 * CHUNK + 3)]


def test_a_tensor_that_is_written_over_counts_as_it_was() -> None:
    readings = DeferredMetrics()
    for dtype in (torch.float32, torch.float64):
        loss = torch.tensor(1.0, dtype=dtype, requires_grad=True)
        readings.add(1, "loss", loss)
        with torch.no_grad():
            loss.fill_(2.0)
    assert [reading.value for reading in readings.read_all()] == [1.0, 1.0]


def test_forgotten_numbers_are_not_taken() -> None:
    readings = DeferredMetrics()
    readings.add(1, "loss", torch.tensor(1.0))
    readings.clear()
    assert readings.read_all() == []
