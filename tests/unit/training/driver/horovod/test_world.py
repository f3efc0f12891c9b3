from __future__ import annotations

import threading

import pytest

from forebay.training.driver.horovod.world import CollectiveWatchdog

WAIT_S = 30.0


def test_who_waits_too_long_is_freed_once() -> None:
    freed = threading.Semaphore(0)
    patience = CollectiveWatchdog(0.05, freed.release)
    with patience:
        assert freed.acquire(timeout=WAIT_S)
    patience.close()
    assert not freed.acquire(blocking=False)


def test_who_does_not_wait_is_left_alone() -> None:
    freed = threading.Event()
    patience = CollectiveWatchdog(0.2, freed.set)
    for _ in range(3):
        with patience:
            pass
    with pytest.raises(KeyError), patience:
        raise KeyError("a broken collective is over, too")
    assert not freed.wait(0.5)
    patience.close()
