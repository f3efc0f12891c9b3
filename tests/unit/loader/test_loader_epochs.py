"""The next epoch is prepared while one ends, where it is known that there is one."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import forebay as fb

Ids = Callable[[object], list[list[int]]]


def gather_threads() -> int:
    return sum(thread.name == "forebay-gather" for thread in threading.enumerate())


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def expected(small: Any, epoch_ids: Ids, epochs: int) -> list[list[list[int]]]:
    with small.loader() as loader:
        return [epoch_ids(loader) for _ in range(epochs)]


@pytest.mark.parametrize("cached", [False, True])
def test_epochs_are_the_same_prepared_or_not(small: Any, cache: fb.DiskCache, epoch_ids: Ids, cached: bool) -> None:
    with small.loader(cache if cached else None, epochs=3) as loader:
        found = [epoch_ids(loader) for _ in range(3)]
        assert gather_threads() == 0, "and after the last one nothing is prepared"
        assert loader.cursor().epoch == 3
        found += [epoch_ids(loader)]
    assert found == expected(small, epoch_ids, 4)


def test_the_next_epoch_begins_before_it_is_asked_for(small: Any, cache: fb.DiskCache) -> None:
    with small.loader(cache, epochs=2) as loader:
        for _ in loader:
            # A trainer that takes longer than the loader; a faster one gets the next epoch when it asks for it.
            wait_for(lambda: gather_threads() == 0 or loader.tally["hits"] > 0)
        wait_for(lambda: loader.tally["hits"] > 0)
    assert gather_threads() == 0
    with small.loader(cache) as loader:
        for _ in loader:
            pass
        assert gather_threads() == 0, "who does not say how many epochs there are gets none for nothing"


def test_an_epoch_left_early_goes_on_where_it_was(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    first, second = expected(small, epoch_ids, 2)
    with small.loader(cache, epochs=2) as loader:
        batches = iter(loader)
        found = epoch_ids(next(batches) for _ in range(len(first) - 1))
        batches.close()
        assert gather_threads() == 0
        found += epoch_ids(loader)
        assert (found, epoch_ids(loader)) == (first, second)


def test_seek_forgets_what_was_prepared(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    first, second = expected(small, epoch_ids, 2)
    with small.loader(cache, epochs=2) as loader:
        start = loader.cursor()
        assert epoch_ids(loader) == first
        loader.seek(start)
        assert gather_threads() == 0
        assert (epoch_ids(loader), epoch_ids(loader)) == (first, second)


def test_a_forked_child_prepares_its_own(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    second = expected(small, epoch_ids, 2)[1]
    with small.loader(cache, epochs=2) as loader:
        epoch_ids(loader)
        context = multiprocessing.get_context("fork")
        found = context.Queue()
        child = context.Process(target=lambda: found.put(epoch_ids(loader)))
        child.start()
        assert found.get(timeout=60) == second
        child.join(60)
        assert child.exitcode == 0
        assert epoch_ids(loader) == second, "and the parent has kept what it had"
