"""Batches that an examination copies as a loader does."""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import islice

import pytest
import torch

from forebay.data.loader.batch import Batch
from forebay.doctor.rounds.feeds import KeptBatches


def test_batches_are_copied_ahead_in_order_until_the_way_ends() -> None:
    kept = tuple(
        Batch({"x": torch.full((2,), float(number))}, position=number, size=2, num_rows=2, weight=1.0)
        for number in range(3)
    )
    batches = KeptBatches(in_memory=kept, on_device=kept).endless_fed(torch.device("cpu"))
    threads = threading.active_count()
    with closing(batches):
        assert [int(batch["x"][0]) for batch in islice(batches, 7)] == [0, 1, 2, 0, 1, 2, 0]
    assert threading.active_count() == threads


def test_the_error_of_a_copy_is_raised() -> None:
    broken = (Batch({"x": "no tensor"}, position=0, size=1, num_rows=1, weight=1.0),)
    batches = KeptBatches(in_memory=broken, on_device=broken).endless_fed(torch.device("cpu"))
    with closing(batches), pytest.raises(TypeError):
        next(batches)
