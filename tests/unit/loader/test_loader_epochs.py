"""The next epoch is prepared while one ends, if another one is known to follow."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
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
            # A trainer that takes longer than the loader: a faster one gets the next epoch when it asks for it.
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


def test_a_second_iteration_goes_on_at_the_cursor(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    first, second = expected(small, epoch_ids, 2)
    with small.loader(cache, epochs=2) as loader:
        left = iter(loader)
        found = [next(left)]
        wait_for(lambda: gather_threads() == 0)
        found.append(next(left))  # by now the next epoch is prepared
        assert epoch_ids(found) + epoch_ids(loader) == first
        assert epoch_ids(loader) == second


def test_an_iteration_that_was_left_ends_no_later_one(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    first = expected(small, epoch_ids, 1)[0]
    with small.loader(cache) as loader:
        left, start = iter(loader), loader.cursor()
        next(left)
        loader.seek(start)
        batches = iter(loader)
        found = [next(batches)]
        left.close()
        assert epoch_ids(found) + epoch_ids(batches) == first


def test_what_cannot_be_prepared_costs_no_batch(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = expected(small, epoch_ids, 2)
    opened, real = [], fb.Loader._open

    def fails_once(loader: fb.Loader, epoch: int, position: int) -> object:
        opened.append(epoch)
        if opened == [0, 1]:
            raise OSError("no more threads")
        return real(loader, epoch, position)

    monkeypatch.setattr(fb.Loader, "_open", fails_once)
    with small.loader(cache, epochs=2) as loader:
        batches = iter(loader)
        found = [next(batches)]
        wait_for(lambda: gather_threads() == 0)
        assert epoch_ids(found) + epoch_ids(batches) == first
        assert epoch_ids(loader) == second
    assert opened.count(1) > 1


def test_a_thread_may_go_on_when_the_main_thread_has_ended(tmp_path: Any, small: Any) -> None:
    script = f"""
import threading
import forebay as fb
plan = fb.build_plan(fb.scan({str(small.folder)!r}))
def train():
    threading.main_thread().join()
    with fb.Loader(plan, fb.Transform(id=fb.Label("id")), global_batch=16) as loader:
        print(sum(len(batch["id"]) for batch in loader), flush=True)
threading.Thread(target=train).start()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.returncode) == ("176", 0), done.stderr
