"""Batches: their arrays in main memory."""

from __future__ import annotations

import copy
import pickle
from unittest.mock import Mock

import numpy as np
import torch

from forebay.data.loader.batch import Batch


def test_arrays_on_the_host_are_those_of_the_batch_and_of_its_parts() -> None:
    batch = Batch({"x": torch.arange(12).view(6, 2)}, num_rows=6, size=6)
    np.testing.assert_array_equal(batch.on_host("x"), batch["x"].numpy())
    np.testing.assert_array_equal(Batch({"n": np.arange(6)}).on_host("n"), np.arange(6))
    for rows in ([1, 2, 3], [4, 0, 4], [5]):
        part = batch.take(np.array(rows), weight=0.5).take(np.array([0]), weight=0.1)
        np.testing.assert_array_equal(part.on_host("x"), batch["x"].numpy()[rows[:1]])
        assert part["x"].is_contiguous() and torch.equal(part["x"], batch["x"][rows[:1]])


def test_a_copy_makes_neither_rows_nor_windows() -> None:
    """And the copy of a batch on a GPU is complete when that batch is: a DataLoader hands out copies."""
    batch = Batch({"x": torch.arange(4)}, num_rows=4, size=4)
    batch.windows = batch.copied = made = Mock()
    batch.set_file_rows(made)
    again = copy.copy(batch)
    assert not made.called and again["x"] is batch["x"] and again.copied is made
    assert again.rows() is made.return_value and again.windows is made.return_value
    again.on_host("x")
    assert not batch._on_host


def test_changed_arrays_are_read_again() -> None:
    batch = Batch({"x": torch.arange(4)}, num_rows=4, size=4)
    part = batch.take(np.arange(2), weight=0.5)
    part["x"] += 7
    np.testing.assert_array_equal(part.on_host("x"), [7, 8])
    part["x"] = torch.zeros(2)
    np.testing.assert_array_equal(part.on_host("x"), [0, 0])
    np.testing.assert_array_equal(batch.on_host("x"), np.arange(4))
    assert torch.equal(pickle.loads(pickle.dumps(part))["x"], part["x"])
