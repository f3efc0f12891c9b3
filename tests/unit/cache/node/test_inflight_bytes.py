"""How much memory loose blocks take, counted by what is alive."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from forebay.cache.node.inflight_bytes import InFlightBytes
from forebay.errors import Cancelled
from forebay.transform.block import Block


def block(nbytes: int) -> Block:
    return Block.of({"a": np.zeros(nbytes // 2, np.uint8), "b": np.zeros(nbytes // 2, np.uint8)})


def test_counts_for_as_long_as_an_array_is_alive() -> None:
    loose = InFlightBytes()
    first, second = block(1000), block(600)
    loose.count(first)
    loose.count(second)
    assert (loose.now, loose.most) == (1600, 1600)
    kept = first.arrays["a"]
    del first
    assert loose.now == 500 + 600
    del second, kept
    assert (loose.now, loose.most) == (0, 1600)


def test_waits_until_enough_is_let_go_of() -> None:
    loose = InFlightBytes()
    held = [block(1000), block(1000)]
    for one in held:
        loose.count(one)
    del one
    passed = threading.Event()

    def wait() -> None:
        loose.wait(1000, 60)
        passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not passed.wait(0.1)
    held.pop()
    assert passed.wait(10)
    thread.join()


def test_goes_on_after_the_deadline() -> None:
    loose = InFlightBytes()
    held = block(1000)
    loose.count(held)
    start = time.monotonic()
    loose.wait(0, 0.05)
    assert time.monotonic() - start >= 0.05


def test_close_ends_the_waiting() -> None:
    loose = InFlightBytes()
    held = block(1000)
    loose.count(held)
    threading.Timer(0.05, loose.close).start()
    with pytest.raises(Cancelled):
        loose.wait(0, 60)
