"""Batches stay valid, memory stays bounded, and nothing is left behind: threads, locks, files."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forebay as fb
from forebay.data.cache.source import LocalSource
from forebay.data.loader.batch_queue import BatchQueue
from forebay.data.loader.loader import _close_all
from forebay.data.loader.pipeline import live_pipelines
from forebay.data.parquet import reading
from forebay.errors import (
    CorruptFile,
    CursorMismatch,
    InvalidOption,
    LimitReached,
    LoaderClosed,
    MissingColumn,
    TooManyRanks,
    TransformFailed,
)
from forebay.runtime.metrics import Counters

Ids = Callable[[object], list[list[int]]]


def loader_threads() -> list[str]:
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    return [name for name in others if name != "fsspecIO"]  # fsspec's own, which lives as long as the process


def until_no_thread_is_left() -> None:
    """An abandoned read's thread may still be about to return."""
    deadline = time.monotonic() + 60
    while left := loader_threads():
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_batches_are_tensors_of_the_promised_form(small: Any) -> None:
    with small.loader() as loader:
        batch = next(iter(loader))
    rows = len(batch["id"])
    assert isinstance(batch["dense"], torch.Tensor)
    assert (batch["dense"].dtype, tuple(batch["dense"].shape)) == (torch.float32, (rows, 2))
    assert (batch["tags"].dtype, tuple(batch["tags"].shape)) == (torch.int64, (rows, 3))
    assert batch["dense"][:, 0].tolist() == batch["id"].tolist()
    assert (batch.position, batch.size, batch.num_rows, batch.weight, batch.epoch) == (0, rows, rows, 1.0, 0)
    with small.loader(as_numpy=True) as loader:
        assert all(isinstance(array, np.ndarray) for array in next(iter(loader)).values())


def test_the_memory_of_an_epoch_is_that_of_the_next(small: Any, cache: fb.DiskCache) -> None:
    """Batches shrink by a row within an epoch, and the next epoch begins with larger ones."""
    with small.loader(cache, global_batch=15) as loader:
        first, second = ([batch["id"].untyped_storage().data_ptr() for batch in loader] for _ in range(2))
    assert set(second) & set(first)


@pytest.mark.usefixtures("gatherers")
def test_a_held_batch_never_changes(small: Any, cache: fb.DiskCache) -> None:
    held, copies = [], []
    with small.loader(cache) as loader:
        for _ in range(4):
            for batch in loader:
                held.append(batch["dense"][1:])  # a view of a part must keep the whole buffer
                copies.append(batch["dense"][1:].clone())
    gc.collect()
    assert all(torch.equal(kept, copy) for kept, copy in zip(held, copies, strict=True))
    held[0].fill_(3.0)  # a batch belongs to its holder
    assert not torch.equal(held[0], copies[0])


def test_a_loader_keeps_no_batch_that_it_handed_out(small: Any, cache: fb.DiskCache) -> None:
    """Freed in the next call, it would make the trainer wait."""
    with small.loader(cache) as loader:
        batches = iter(loader)
        dropped = [weakref.ref(next(batches)) for _ in range(3)]
        assert [ref() for ref in dropped] == [None] * 3


@pytest.mark.usefixtures("gatherers")
def test_released_buffers_are_used_again(small: Any, cache: fb.DiskCache) -> None:
    with small.loader(cache, prefetch_bytes=1) as loader:
        addresses = [batch["id"].data_ptr() for _ in range(4) for batch in loader]
    assert len(set(addresses)) < len(addresses) / 2


@pytest.mark.usefixtures("gatherers")
@pytest.mark.parametrize("way", ["break", "exception", "close", "garbage"])
def test_leaving_early_leaves_nothing(small: Any, cache: fb.DiskCache, way: str) -> None:
    loader = small.loader(cache)
    iterator = iter(loader)
    next(iterator)
    if way == "break":
        for _ in loader:
            break
    elif way == "exception":
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the loop is what is tested
            for _ in loader:
                _ = 1 / 0
        gc.collect()
    elif way == "close":
        loader.close()
        loader.close()
        with pytest.raises(LoaderClosed, match="seek"):
            next(iter(loader))
    del iterator, loader
    gc.collect()
    until_no_thread_is_left()
    assert [path for path in cache.path.rglob("*") if path.is_file() and "part" in path.name] == []


def test_an_iterator_that_its_own_thread_frees_ends(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a put, where the garbage collector may run: the thread holds the lock of the queue."""
    dropped, wake = threading.Event(), BatchQueue._wake
    with small.loader(prefetch_bytes=1) as loader:
        cycle: list[Any] = [iter(loader)]
        cycle.append(cycle)
        next(cycle[0])
        assert loader._pipeline is not None and loader._batches is not None
        gatherer, queue = loader._pipeline._thread.ident, loader._batches.queue

        def collect(queue: BatchQueue) -> None:
            if threading.get_ident() == gatherer and dropped.wait(60):
                gc.collect()
            wake(queue)

        while not (len(queue) and queue._num_waiting):  # the thread, for room
            time.sleep(0.001)
        gc.disable()
        try:
            monkeypatch.setattr(BatchQueue, "_wake", collect)
            next(cycle[0])
            del cycle
            dropped.set()
            until_no_thread_is_left()
        finally:
            gc.enable()


def test_a_child_forked_while_a_thread_holds_the_lock_ends(small: Any) -> None:
    with small.loader() as loader:
        next(iter(loader))
        next(batches := iter(loader))
        assert loader._pipeline is not None
        with loader._pipeline._lock:
            child = multiprocessing.get_context("fork").Process(target=loader.close)
            child.start()
        child.join(30)
        assert child.exitcode == 0
        next(batches)


def test_counters_are_closed_within_a_sum(small: Any) -> None:
    counters = Counters()
    with small.loader(counters=counters) as loader:
        next(iter(loader))
        batches = iter(loader)
        next(batches)
        with counters._lock:  # as where the garbage collector frees an iterator
            loader.close(timeout_s=0.1)


def test_a_new_iteration_ends_the_one_before(small: Any) -> None:
    with small.loader() as loader:
        first = iter(loader)
        next(first)
        next(iter(loader))
        with pytest.raises(LoaderClosed, match="Start a new iteration"):
            list(first)


def test_close_returns_although_a_read_is_stuck(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    release, stuck, original = threading.Event(), threading.Event(), reading.open_input

    def never(uri: str) -> Any:
        stuck.set()
        release.wait(120)
        return original(uri)

    monkeypatch.setattr(reading, "open_input", never)
    loader = small.loader()

    def wait() -> None:
        with pytest.raises(LoaderClosed):
            next(iter(loader))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert stuck.wait(60)
    start = time.monotonic()
    loader.close(timeout_s=60)
    assert time.monotonic() - start < 20
    waiting.join(60)
    assert not waiting.is_alive()
    release.set()


def test_close_while_an_iteration_opens_what_it_reads(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = fb.Loader._open

    def closed_meanwhile(loader: fb.Loader, epoch: int, position: int) -> Any:
        pipeline = original(loader, epoch, position)
        loader.close()
        return pipeline

    monkeypatch.setattr(fb.Loader, "_open", closed_meanwhile)
    with pytest.raises(LoaderClosed):
        next(iter(small.loader()))
    until_no_thread_is_left()


def test_reads_stay_within_the_byte_budget(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that stops taking batches stops the reads: the loader reads ahead within its budget only."""
    manifest = fb.scan(str(parquet_folder({"a.parquet": [100] * 60})), columns=["id", "x0"])
    plan = fb.build_plan(manifest, lanes=2, shuffle_rows=100)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense("x0"))
    opened, original = [], reading.open_input

    def counted(uri: str) -> Any:
        opened.append(uri)
        return original(uri)

    monkeypatch.setattr(reading, "open_input", counted)
    budget = 10 * int(manifest.bytes.max())
    with fb.Loader(plan, transform, global_batch=20, prefetch_bytes=budget) as loader:
        next(iter(loader))
    opened.clear()
    with fb.Loader(plan, transform, global_batch=20, prefetch_bytes=budget) as loader:
        batches = iter(loader)
        next(batches)
        time.sleep(1)
        assert len(opened) <= 10 + 2 * 4 + 12, (
            "half the budget ahead, what the windows need, what finished batches used"
        )
        assert sum(1 for _ in batches) == plan.num_batches(20) - 1


@pytest.mark.usefixtures("gatherers")
def test_errors_reach_the_trainer(small: Any) -> None:
    def fails_late(batch: Any) -> dict[str, np.ndarray]:
        if batch.column("id")[0].as_py() > 100:
            raise ValueError("id over 100")
        return {"id": batch.column("id").to_numpy()}

    broken = fb.Transform(fn=fails_late, version="1")
    with (
        fb.Loader(small.plan, broken, global_batch=16) as loader,
        pytest.raises(TransformFailed, match="fails_late.*id over 100"),
    ):
        list(loader)
    until_no_thread_is_left()


def test_a_transform_that_changes_its_arrays_is_refused(small: Any) -> None:
    def changes(batch: Any) -> dict[str, np.ndarray]:
        ids = batch.column("id").to_numpy()
        return {"id": ids if ids[0] < 50 else ids.astype(np.float32)}

    with (
        fb.Loader(small.plan, fb.Transform(fn=changes, version="1"), global_batch=16) as loader,
        pytest.raises(TransformFailed, match="same names, dtypes"),
    ):
        list(loader)


def test_corrupt_pages_reach_the_trainer(small: Any) -> None:
    path = small.folder / "c.parquet"
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[4:-2000] = bytes(len(content) - 2004)
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    plan = fb.build_plan(small.manifest.for_copies(), lanes=6)
    with fb.Loader(plan, small.transform, global_batch=16) as loader, pytest.raises(CorruptFile, match=r"c\.parquet"):
        list(loader)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"world": fb.World(size=7)}, TooManyRanks, "7 ranks cannot share 6 lanes"),
        ({"global_batch": 0}, InvalidOption, "global_batch=0"),
        ({"global_batch": 200, "last": "drop"}, InvalidOption, "drops all 176 rows"),
        ({"last": "pad"}, InvalidOption, "balance"),
        ({"epoch": -1}, InvalidOption, "epoch=-1"),
        ({"epoch": 1.5}, InvalidOption, "epoch=1.5"),
        ({"global_batch": 64.0}, InvalidOption, "global_batch=64.0"),
        ({"cache": "/tmp/x"}, InvalidOption, "DiskCache"),
        ({"prefetch_bytes": 0}, InvalidOption, "prefetch_bytes=0"),
        ({"world": 3}, InvalidOption, r"world=3: give fb\.World\(rank"),
        ({"counters": 3}, InvalidOption, r"counters=3: give forebay\.runtime\.metrics\.Counters"),
    ],
)
def test_bad_options_fail_before_any_thread(small: Any, options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        small.loader(**options)


def test_arguments_in_the_wrong_place_are_named(small: Any) -> None:
    with pytest.raises(InvalidOption, match="build_plan"):
        fb.Loader(small.manifest, small.transform, global_batch=16)
    with pytest.raises(InvalidOption, match=r"fb\.Transform"):
        fb.Loader(small.plan, None, global_batch=16)
    with pytest.raises(InvalidOption, match="plan=.*build_plan"):
        fb.Data(plan=small.manifest, transform=small.transform, global_batch=16)
    with pytest.raises(InvalidOption, match="path=3: give the folder of the cache"):
        fb.DiskCache(3, quota_bytes=1)  # type: ignore[arg-type]
    with small.loader() as loader, pytest.raises(CursorMismatch, match="from_json"):
        loader.seek(loader.cursor().to_json())


def moved(batch: Any, _: Any) -> Any:
    batch["x"] += 1
    return batch


def test_data_is_another_way_to_give_plan_transform_and_batch(small: Any) -> None:
    transform = fb.Transform(x=fb.Dense("x0"))
    data = fb.Data(plan=small.plan, transform=transform, global_batch=16, last="drop", augment=moved)
    parts = {"global_batch": 16, "last": "drop", "augment": moved}
    with fb.Loader(small.plan, transform, **parts) as written, fb.Loader(data) as given:
        assert given.data is data
        assert written.data == replace(data, augment=written.data.augment)
        assert (given.plan, given.global_batch, given.last) == (small.plan, 16, "drop")
        for ours, theirs in zip(given, written, strict=True):
            assert torch.equal(ours["x"], theirs["x"])
        copy = pickle.loads(pickle.dumps(given))
        assert (copy.cursor(), copy.last) == (given.cursor(), "drop")


def test_what_data_has_already_is_refused_by_name(small: Any, tmp_path: Path) -> None:
    data = fb.Data(plan=small.plan, transform=small.transform, global_batch=16)
    disk = fb.DiskCache(tmp_path / "cache", quota_bytes=1 << 20)
    for given, options, words in [
        ((small.transform,), {}, "got transform as well"),
        ((), {"transform": small.transform}, "got transform as well"),
        ((), {"global_batch": 16}, r"got global_batch as well.*replace\(data, global_batch="),
        ((None,), {"last": "drop", "augment": lambda batch, _: batch}, "got last and augment as well"),
        ((disk, disk), {}, "two caches"),
        (("/tmp/x",), {}, "DiskCache"),
    ]:
        with pytest.raises(InvalidOption, match=words):
            fb.Loader(data, *given, **options)
    with pytest.raises(InvalidOption, match="no global_batch"):
        fb.Loader(small.plan, small.transform)
    with pytest.raises(InvalidOption, match="no transform"):
        fb.Loader(small.plan, global_batch=16)
    for loader in (fb.Loader(data, disk), fb.Loader(data, cache=disk)):
        with loader:
            assert next(iter(loader)).size == 16
    assert disk.datasets()


def test_numpy_integers_are_integers(small: Any) -> None:
    with fb.Loader(small.plan, small.transform, global_batch=np.int64(16), epoch=np.int32(1)) as loader:
        assert fb.Cursor.from_json(loader.cursor().to_json()).global_batch == 16
    rows = small.plan.batch(np.int64(1), np.int64(0), np.int64(16), fb.World(rank=np.int64(1), size=np.int64(2)))
    assert rows.row.tolist() == small.plan.batch(1, 0, 16, fb.World(rank=1, size=2)).row.tolist()


def test_missing_columns_fail_before_any_thread(small: Any) -> None:
    with pytest.raises(MissingColumn, match="x9"):
        fb.Loader(small.plan, fb.Transform(x=fb.Dense("x9")), global_batch=16)


def _child(loader: fb.Loader, answer: Any) -> None:
    answer.put([np.asarray(batch["id"]).tolist() for batch in loader])
    loader.close()


def test_close_does_not_wait_twice(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release, waits, original = threading.Event(), threading.Event(), [], LocalSource.close

    def stuck(batch: Any) -> dict[str, np.ndarray]:
        entered.set()
        release.wait(120)
        return {"id": batch.column("id").to_numpy()}

    def noted(source: LocalSource, timeout_s: float = 5.0) -> None:
        waits.append(timeout_s)
        original(source, timeout_s)

    monkeypatch.setattr(LocalSource, "close", noted)
    loader = fb.Loader(small.plan, fb.Transform(fn=stuck, version="1"), global_batch=16)

    def consume() -> None:
        with pytest.raises(LoaderClosed):
            next(iter(loader))

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert entered.wait(60)
    loader.close(timeout_s=0.5)
    consumer.join(60)
    assert not consumer.is_alive()
    release.set()
    assert len(waits) == 1, waits


def test_many_blocks_take_few_descriptors(parquet_folder: Callable[..., Path], cache: fb.DiskCache) -> None:
    """A map must not keep its file open: a node has thousands of blocks and often a limit of 1,024 descriptors."""
    manifest = fb.scan(str(parquet_folder({"a.parquet": [5000] * 20})), columns=["id", "x0"])
    # The first window is the whole lane: all blocks are requested at once, and none is released.
    plan = fb.build_plan(manifest, lanes=2, shuffle_rows=1 << 19)
    with fb.Loader(plan, fb.Transform(x=fb.Dense(["x0", "id"])), cache, global_batch=64) as loader:
        list(loader)
        batches = iter(loader)
        before = len(list(Path("/proc/self/fd").iterdir()))
        next(batches)
        assert len(loader._pipeline._gathered._prefetcher._users) == 20
        for pending in list(loader._pipeline._gathered._prefetcher._futures.values()):
            pending.result(timeout=30)  # a worker that looks up a block has its file open
        assert len(list(Path("/proc/self/fd").iterdir())) - before < 10


def test_a_loader_travels_to_a_spawned_child(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    with small.loader(cache) as loader:
        next(iter(loader))
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert epoch_ids(copy) == epoch_ids(loader)


def _spawned(plan: fb.Plan, transform: fb.Transform, cache: fb.DiskCache, answer: Any) -> None:
    _child(fb.Loader(plan, transform, cache, global_batch=16), answer)


@pytest.mark.usefixtures("gatherers")
def test_a_forked_child_goes_on_with_the_parents_loader(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    with small.loader(cache) as loader:
        batches = iter(loader)
        next(batches)
        child = context.Process(target=_child, args=(loader, answer))
        child.start()
        ids = answer.get(timeout=60)
        child.join(30)
        assert child.exitcode == 0
        assert ids == epoch_ids(batches)
    answer.close()
    answer.join_thread()


def test_a_spawned_child_reads_the_same(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    child = context.Process(target=_spawned, args=(small.plan, small.transform, cache, answer))
    child.start()
    ids = answer.get(timeout=120)
    child.join(30)
    assert child.exitcode == 0
    with small.loader(cache) as loader:
        assert ids == epoch_ids(loader)
        assert loader.counters["parquet_opens"] == 0
    answer.close()
    answer.join_thread()


@pytest.mark.usefixtures("more_gatherers")
def test_a_program_that_fails_in_its_loop_ends_its_threads_first(small: Any) -> None:
    script = f"""
import atexit, sys, threading
atexit.register(lambda: print([thread.name for thread in threading.enumerate() if "forebay" in thread.name]))
import forebay as fb
loader = fb.Loader(fb.build_plan(fb.scan({str(small.folder)!r})), fb.Transform(id=fb.Label("id")), global_batch=16)
for batch in loader:
    raise SystemExit(7)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 7), done.stderr


def test_an_iterator_that_outlives_its_module_says_nothing(small: Any) -> None:
    script = f"""
import logging
import forebay as fb
logging.main = __import__("__main__")  # as dill does: the names of this script outlive those of the loader's module
loader = fb.Loader(fb.build_plan(fb.scan({str(small.folder)!r})), fb.Transform(id=fb.Label("id")), global_batch=16)
batches = iter(loader)
next(batches)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_thread_that_cannot_start_leaves_nothing_to_join(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while an interpreter of Python 3.12 ends."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "forebay-gather":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    pipelines = set(live_pipelines)
    with small.loader() as loader:
        with pytest.raises(LimitReached, match="interpreter shutdown"):
            next(iter(loader))
        assert set(live_pipelines) == pipelines
    _close_all()
