"""Memory of in-flight blocks, counted until their arrays are freed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from forebay.data.cache.node.service import InFlightBytes
from forebay.data.transform.block import Block
from forebay.errors import Cancelled


def block(nbytes: int) -> Block:
    return Block.of({"a": np.zeros(nbytes // 2, np.uint8), "b": np.zeros(nbytes // 2, np.uint8)})


def test_counts_for_as_long_as_an_array_is_alive() -> None:
    counter = InFlightBytes()
    first, second = block(1000), block(600)
    counter.count(first)
    counter.count(second)
    assert (counter.current, counter.peak) == (1600, 1600)
    kept = first.arrays["a"]
    del first
    assert counter.current == 500 + 600
    del second, kept
    assert (counter.current, counter.peak) == (0, 1600)


def test_waits_until_enough_is_let_go_of() -> None:
    counter = InFlightBytes()
    held = [block(1000), block(1000)]
    for one in held:
        counter.count(one)
    del one
    passed = threading.Event()

    def wait() -> None:
        counter.wait_below(1000, 60)
        passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not passed.wait(0.1)
    held.pop()
    assert passed.wait(10)
    thread.join()


def test_goes_on_after_the_deadline() -> None:
    counter = InFlightBytes()
    held = block(1000)
    counter.count(held)
    start = time.monotonic()
    counter.wait_below(0, 0.05)
    assert time.monotonic() - start >= 0.05


def test_close_ends_the_waiting() -> None:
    counter = InFlightBytes()
    held = block(1000)
    counter.count(held)
    threading.Timer(0.05, counter.close).start()
    with pytest.raises(Cancelled):
        counter.wait_below(0, 60)
