"""Gathers that threads share, compared with one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forebay.data.kernels import calls, divided


@contextmanager
def served(number: int) -> Iterator[NDArray[np.int64]]:
    """State of a gather, for this many threads."""
    calls.load_divided()
    state = np.zeros(divided.STATE_WORDS, np.int64)
    threads = [threading.Thread(target=partial(divided.serve, state), daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    yield state
    divided.stop(state)
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


SIZES = st.lists(st.integers(1, 130), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(0, 60), st.integers(1, 70), st.integers(0, 3))
def test_any_division_copies_the_same_arrays(row_bytes: list[int], rows: int, part_rows: int, threads: int) -> None:
    rng = np.random.default_rng(rows)
    blocks = [[rng.integers(256, size=(9, size), dtype=np.uint8) for size in row_bytes] for _ in range(3)]
    bases = np.array([[block[k].ctypes.data for block in blocks] for k in range(len(row_bytes))], np.uint64)
    starts = np.cumsum([8, *(size * rows for size in row_bytes)])
    layout = np.stack([row_bytes, starts[:-1]], axis=1).astype(np.int64)
    slot_of, block, row = np.array([2, -1, 0, 1]), rng.choice([0, 2, 3], rows), rng.integers(9, size=rows)
    one, other = (np.full(starts[-1] + 8, 7, np.uint8) for _ in range(2))
    assert calls.gather_arrays(one.ctypes.data, layout, bases, slot_of, block, row) == -1
    with served(threads) as state:
        state[divided.TARGET], state[divided.PART_ROWS] = other.ctypes.data, part_rows
        for _ in range(3):
            assert divided.gather_arrays(state, layout, bases, slot_of, block, row) == -1
            assert (one == other).all()
            other[:] = 7
        if rows:
            block[rows // 2] = 1
            assert divided.gather_arrays(state, layout, bases, slot_of, block, row) == 1
            assert (other == 7).all(), "then nothing is copied"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), min_size=7, max_size=7), max_size=3), st.integers(1, 9), st.integers(0, 3))
def test_any_division_copies_the_same_lists(lengths: list[list[int]], part_rows: int, threads: int) -> None:
    rng, item_bytes = np.random.default_rng(part_rows), [1, 4, 8][: len(lengths)]
    values = rng.integers(256, size=400, dtype=np.uint8)
    places = np.empty((len(lengths), 2, 7), np.int64)
    for k, each in enumerate(lengths):
        places[k, 0], places[k, 1] = values.ctypes.data + rng.integers(40, size=7), each
    sizes = [size * sum(each) for size, each in zip(item_bytes, lengths, strict=True)]
    starts = np.cumsum([8, *sizes])
    layout = np.array([*zip(item_bytes, starts, strict=False)], np.int64).reshape(-1, 2)
    one, other = (np.full(starts[-1] + 8, 7, np.uint8) for _ in range(2))
    calls.gather_lists(one.ctypes.data, layout, places)
    with served(threads) as state:
        state[divided.TARGET], state[divided.PART_ROWS] = other.ctypes.data, part_rows
        divided.gather_lists(state, layout, places)
    assert (one == other).all()


@pytest.mark.parametrize("threads", [1, 5])
def test_a_gather_waits_for_no_thread_that_has_not_begun(threads: int) -> None:
    """Threads that end at once: the caller copies all parts."""
    calls.load_divided()
    state = np.zeros(divided.STATE_WORDS, np.int64)
    divided.stop(state)
    for _ in range(threads):
        divided.serve(state)
    source, target = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    state[divided.TARGET], state[divided.PART_ROWS] = target.ctypes.data, 3
    bases, slot_of = np.array([[source.ctypes.data]], np.uint64), np.zeros(1, np.int64)
    rows = np.arange(100)
    assert divided.gather_arrays(state, np.array([[1, 0]]), bases, slot_of, np.zeros(100, np.int64), rows) == -1
    assert (source == target).all()
