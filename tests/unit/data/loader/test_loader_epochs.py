"""The next epoch is prepared while one ends: wholly if it is known to follow, else its start, from the cache alone."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import until

import forebay as fb
from forebay.data.loader import pipeline
from forebay.errors import LoaderClosed

Ids = Callable[[object], list[list[int]]]


def gather_threads() -> int:
    return sum(thread.name == "forebay-gather" for thread in threading.enumerate())


def epoch_made(loader: fb.Loader) -> int:
    """Epoch of which the gathering thread makes batches."""
    return loader._pipeline._making.start[0]  # type: ignore[union-attr]


def wait_until_prepared(loader: fb.Loader) -> None:
    """Wait for the first batch of the next epoch."""
    until(lambda: epoch_made(loader) == loader.epoch and bool(loader._pipeline._making.queue.held_bytes))  # type: ignore[union-attr]


def expected(small: Any, epoch_ids: Ids, epochs: int) -> list[list[list[int]]]:
    with small.loader() as loader:
        return [epoch_ids(loader) for _ in range(epochs)]


@pytest.mark.parametrize("epochs", [3, None])
@pytest.mark.parametrize("cached", [False, True])
def test_epochs_are_the_same_prepared_or_not(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids, cached: bool, epochs: int | None
) -> None:
    with small.loader(cache if cached else None, epochs=epochs) as loader:
        found = [epoch_ids(loader) for _ in range(3)]
        until(lambda: gather_threads() == (0 if epochs else 1))  # after the last one nothing is prepared
        assert loader.cursor().epoch == 3
        found += [epoch_ids(loader)]
    assert found == expected(small, epoch_ids, 4)


def test_the_next_epoch_begins_before_it_is_asked_for(small: Any, cache: fb.DiskCache) -> None:
    with small.loader(cache, epochs=2) as loader:
        for _ in loader:
            # A trainer that takes longer than the loader: a faster one gets the next epoch when it asks for it.
            until(lambda: epoch_made(loader) == 1)
    assert gather_threads() == 0


@pytest.mark.parametrize("epochs", [3, None])
@pytest.mark.parametrize("cached", [False, True])
def test_a_block_counts_for_the_epoch_that_it_feeds(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids, cached: bool, epochs: int | None
) -> None:
    """However far ahead it was made."""
    found = []
    with small.loader(cache if cached else None, epochs=epochs) as loader:
        for epoch in range(3):
            before = loader.counters.as_dict()
            epoch_ids(loader)
            if epoch < 2:
                wait_until_prepared(loader) if epochs and cached else until(lambda: epoch_made(loader) == loader.epoch)
            counted = loader.counters.since(before)
            found.append({name: counted.get(name, 0) for name in ("hits", "stores", "bypasses", "parquet_opens")})
    cold = {"hits": 0, "stores": 8 * cached, "bypasses": 8 * (not cached), "parquet_opens": 8}
    warm = {"hits": 8, "stores": 0, "bypasses": 0, "parquet_opens": 0}
    assert found == [cold, *([warm] if cached else [cold]) * 2]


def test_at_most_one_epoch_is_made_ahead(small: Any, cache: fb.DiskCache) -> None:
    """Epochs of few batches fit into the queue: without a bound, all of them would be made at once."""
    with small.loader(cache, epochs=9) as loader:
        batches = iter(loader)
        next(batches)
        until(lambda: epoch_made(loader) == 1)
        time.sleep(0.3)
        assert epoch_made(loader) == 1
    assert gather_threads() == 0


def test_an_epoch_that_may_not_come_is_prepared_and_not_counted(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids
) -> None:
    with small.loader(cache) as loader:
        found, cursors = [epoch_ids(loader)], [loader.cursor()]
        counted = loader.counters.as_dict()
        wait_until_prepared(loader)
        assert loader.counters.as_dict() == counted
        assert counted["parquet_opens"] == 8
        assert loader.cursor() == cursors[0]
        found += [epoch_ids(loader)]
        assert loader.counters["hits"] == 8, "each block with rows of the second epoch, once"
        assert loader.counters["parquet_opens"] == 8
        wait_until_prepared(loader)
        loader.seek(cursors[0])
        assert gather_threads() == 0
        found += [epoch_ids(loader) for _ in range(2)]
    assert gather_threads() == 0
    first, second, third = expected(small, epoch_ids, 3)
    assert found == [first, second, second, third]


def test_an_epoch_that_may_not_come_reads_no_source_and_calls_no_function(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids
) -> None:
    calls: list[int] = []

    def counted(batch: Any, rng: object) -> Any:
        calls.append(len(batch["id"]))
        return batch

    for options in ({"cache": None}, {"cache": cache, "augment": fb.Augment(counted, version="1")}):
        transform = fb.Transform(id=fb.Label("id", dtype="int64"))
        with fb.Loader(small.plan, transform, global_batch=16, **options) as loader:
            first, calls_before = epoch_ids(loader), len(calls)
            until(lambda loader=loader: epoch_made(loader) == 1)
            time.sleep(0.3)
            assert len(calls) == calls_before
            assert loader.counters["parquet_opens"] == 8
            assert [first, epoch_ids(loader)] == expected(small, epoch_ids, 2)
    assert len(calls) == 2 * 11


@pytest.mark.parametrize("ends", ["late", "dropped"])
def test_an_epoch_that_does_not_come_ends_by_itself(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    if ends == "late":
        monkeypatch.setattr(pipeline, "_KEPT_S", 0.1)
    loader = small.loader(cache)
    first = epoch_ids(loader)
    if ends == "dropped":
        del loader
    until(lambda: gather_threads() == 0)
    until(lambda: not cache.users())
    if ends == "late":
        assert [first, epoch_ids(loader)] == expected(small, epoch_ids, 2)
        loader.close()


def test_a_trainer_that_stops_between_two_batches_goes_on_using_the_cache(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_KEPT_S", 0.1)
    with small.loader(cache) as loader:
        batches = iter(loader)
        found = [next(batches)]
        until(lambda: epoch_made(loader) == 1)
        time.sleep(0.6)  # three looks at the time
        assert cache.users()
        found += [*batches]
        until(lambda: not cache.users())
        assert [epoch_ids(found), epoch_ids(loader)] == expected(small, epoch_ids, 2)


@pytest.mark.usefixtures("gatherers")
def test_an_epoch_left_early_goes_on_where_it_was(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    first, second = expected(small, epoch_ids, 2)
    with small.loader(cache, epochs=2) as loader:
        batches = iter(loader)
        found = epoch_ids(next(batches) for _ in range(len(first) - 1))
        batches.close()
        assert gather_threads() == 0
        found += epoch_ids(loader)
        assert (found, epoch_ids(loader)) == (first, second)


@pytest.mark.usefixtures("gatherers")
def test_seek_forgets_what_was_prepared(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    first, second = expected(small, epoch_ids, 2)
    with small.loader(cache, epochs=2) as loader:
        start = loader.cursor()
        assert epoch_ids(loader) == first
        loader.seek(start)
        assert gather_threads() == 0
        assert (epoch_ids(loader), epoch_ids(loader)) == (first, second)


@pytest.mark.usefixtures("gatherers")
@pytest.mark.parametrize("epochs", [2, None])
def test_a_forked_child_prepares_its_own(small: Any, cache: fb.DiskCache, epoch_ids: Ids, epochs: int | None) -> None:
    second = expected(small, epoch_ids, 2)[1]
    with small.loader(cache, epochs=epochs) as loader:
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
        until(lambda: epoch_made(loader) == 1)
        found.append(next(left))
        assert epoch_ids(found) + epoch_ids(loader) == first
        assert epoch_ids(loader) == second
        with pytest.raises(LoaderClosed, match="Start a new iteration"):
            next(left)


def test_a_loop_left_at_the_last_batch_gives_no_batch_of_the_next_epoch(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids
) -> None:
    first, second = expected(small, epoch_ids, 2)
    with small.loader(cache) as loader:
        left = iter(loader)
        found = epoch_ids(next(left) for _ in range(len(first)))
        batches = iter(loader)
        again = [next(batches)]
        with pytest.raises(LoaderClosed, match="Start a new iteration"):
            next(left)
        assert (found, epoch_ids(again) + epoch_ids(batches)) == (first, second)


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


def test_the_cache_is_in_use_until_the_last_batch_is_taken(small: Any, cache: fb.DiskCache) -> None:
    """Although all batches are in memory long before."""
    with small.loader(cache, epochs=1) as loader:
        batches = iter(loader)
        next(batches)
        queue = loader._pipeline._making.queue  # type: ignore[union-attr]
        until(lambda: [item for item, _ in list(queue._items)[-1:]] == [None])
        time.sleep(0.05)
        assert [user.dataset for user in cache.users()] == [use.dataset for use in cache.datasets()]
        assert len(list(batches)) == len(loader) - 1
        until(lambda: cache.users() == [])


@pytest.mark.parametrize("epochs", [2, None])
def test_what_cannot_be_prepared_costs_no_batch(
    small: Any, cache: fb.DiskCache, epoch_ids: Ids, monkeypatch: pytest.MonkeyPatch, epochs: int | None
) -> None:
    first, second = expected(small, epoch_ids, 2)
    made, real = [], pipeline.GatheredEpoch

    def fails_once(*arguments: Any, start: tuple[int, int], **options: Any) -> object:
        made.append(start[0])
        if made == [0, 1]:
            raise OSError("no more memory")
        return real(*arguments, start=start, **options)

    monkeypatch.setattr(pipeline, "GatheredEpoch", fails_once)
    with small.loader(cache, epochs=epochs) as loader:
        assert epoch_ids(loader) == first
        with pytest.raises(OSError, match="no more memory"):
            epoch_ids(loader)
        assert gather_threads() == 0
        assert epoch_ids(loader) == second


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
    if (3, 12) <= sys.version_info < (3, 13):  # it starts no thread then
        assert "LimitReached" in done.stderr and "The main thread of this program has ended" in done.stderr
    else:
        assert (done.stdout.strip(), done.returncode) == ("176", 0), done.stderr
