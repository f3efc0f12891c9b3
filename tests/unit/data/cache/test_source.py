"""Blocks built in this process: from the cache or the source, once each, always correct."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.waiting import until

from forebay.data.cache.builders.data_workers import NICENESS, DataWorkers
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import BlockSource, LocalCache, LocalSource, open_source
from forebay.data.cache.spec import CacheSpec
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet import reading
from forebay.data.sources.scan import scan
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Categorical, Dense, Label, Ragged
from forebay.data.transform.transform import Transform
from forebay.errors import LoaderClosed, SourceChanged, TransformFailed
from forebay.runtime.metrics import Counters
from forebay.storage.file_lock import try_lock
from forebay.storage.retry import ReadPolicy

WriteParquet = Callable[..., Path]
ROWS = {"a.parquet": [30, 20], "b.parquet": [10, 40, 5]}
NUM_ROW_GROUPS = 5
TRANSFORM = Transform(x=Dense(["x0", "x1"]), id=Dense("id", dtype="float64"), label=Label("clicked"))

READ_ALL = """
import json, pickle, sys, time
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import LocalSource
from forebay.data.parquet import reading
from forebay.runtime.metrics import Counters

cache, dataset = pickle.loads(bytes.fromhex(sys.argv[1]))
real = reading.open_input

def slow(uri):
    time.sleep(0.02)  # long enough for the others to ask for the same one
    return real(uri)

reading.open_input = slow
counters = Counters()
print("ready", flush=True)
input()
source = LocalSource(dataset, cache, counters=counters, workers=DataWorkers(num_reads=3))
futures = [source.request(index) for index in range(len(dataset.manifest))]
ids = [row for future in futures for row in future.result(30).arrays["id"][:, 0].tolist()]
source.close()
print(json.dumps([ids == list(range(dataset.manifest.num_rows)), counters.as_dict()]), flush=True)
"""

THREADS = """
import json, os, pickle, sys, threading, time
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.source import LocalSource
from forebay.data.kernels import calls as kernels
from forebay.runtime.metrics import Counters

cache, dataset = pickle.loads(bytes.fromhex(sys.argv[1]))

def ticks():
    # A thread's name may hold spaces; utime and stime are the 12th and 13th words after it.
    found = {}
    for thread in os.listdir("/proc/self/task"):
        words = open(f"/proc/self/task/{thread}/stat").read().rpartition(")")[2].split()
        found[int(thread)] = int(words[11]) + int(words[12])
    return found

kernels.load()
# Libraries that are imported start threads, which wait for work at full speed for 0.1 s before they sleep.
before, earlier = ticks(), {}
while before != earlier:
    time.sleep(0.2)
    before, earlier = ticks(), before
source = LocalSource(dataset, cache, counters=Counters(), workers=DataWorkers(num_reads=2))
blocks = [source.request(index).result(30) for index in range(len(dataset.manifest))]
ours = {t.native_id for t in threading.enumerate() if t.name == "forebay-data"} | {threading.get_native_id()}
others = {str(t): n - before.get(t, 0) for t, n in ticks().items() if t not in ours and n > before.get(t, 0)}
data = ours - {threading.get_native_id()}
niceness = [os.getpriority(os.PRIO_PROCESS, thread) for thread in data]
source.close()
print(json.dumps({"others": others, "niceness": niceness}))
"""


class Gate:
    """Transform that waits for `go`, and counts its simultaneous calls."""

    def __init__(self) -> None:
        self.go, self.entered, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self.num_calls = self.most_inside = self._inside = 0
        self.transform = Transform(fn=self._pass, version="1")

    def _pass(self, batch: pa.RecordBatch) -> dict[str, np.ndarray]:
        with self._lock:
            self.num_calls += 1
            self._inside += 1
            self.most_inside = max(self.most_inside, self._inside)
        self.entered.set()
        self.go.wait(120)
        with self._lock:
            self._inside -= 1
        return {"id": np.asarray(batch.column("id"))}


@pytest.fixture
def stuck_transform() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.go.set()


@pytest.fixture
def manifest(parquet_folder: WriteParquet) -> Manifest:
    return scan(parquet_folder(ROWS))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URIs of the Parquet files opened to read a row group, in order."""
    uris: list[str] = []
    real = reading.open_input

    def spy(uri: str) -> pa.NativeFile:
        uris.append(uri)
        return real(uri)

    monkeypatch.setattr(reading, "open_input", spy)
    return uris


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Event of a hanging read. Reads hang until the end of the test."""
    go, hangs = threading.Event(), threading.Event()

    def hang(uri: str) -> pa.NativeFile:
        hangs.set()
        go.wait(120)
        raise OSError("too late")

    monkeypatch.setattr(reading, "open_input", hang)
    yield hangs
    go.set()


def read_all(
    manifest: Manifest, cache: DiskCache | None, transform: Transform = TRANSFORM, array: str = "id"
) -> tuple[list[float], dict[str, float]]:
    """Rows of one array of all blocks, and the counters."""
    counters = Counters()
    with closing(LocalSource(Dataset(manifest, transform), cache, counters=counters)) as source:
        futures = [source.request(index) for index in range(len(manifest))]
        rows = np.concatenate([future.result(30).arrays[array] for future in futures])
    return rows.ravel().tolist(), counters.as_dict()


def counts(facts: dict[str, float]) -> dict[str, float]:
    return {
        name: facts[name] for name in ("hits", "stores", "bypasses", "parquet_opens", "quarantined") if name in facts
    }


def test_second_epoch_opens_no_file(manifest: Manifest, cache: DiskCache, opened: list[str]) -> None:
    rows, facts = read_all(manifest, cache)
    assert rows == list(range(manifest.num_rows))
    assert counts(facts) == {"stores": NUM_ROW_GROUPS, "parquet_opens": NUM_ROW_GROUPS}
    assert len(opened) == NUM_ROW_GROUPS
    assert facts["source_bytes"] > 0 and facts["remote_read_s"] > 0 and facts["transform_s"] > 0
    again, facts = read_all(manifest, cache)
    assert again == rows
    assert counts(facts) == {"hits": NUM_ROW_GROUPS}
    assert len(opened) == NUM_ROW_GROUPS


def test_warm_cache_does_not_even_look_at_the_source(manifest: Manifest, cache: DiskCache) -> None:
    rows, _ = read_all(manifest, cache)
    for name in ROWS:
        (Path(manifest.root) / name).unlink()
    assert read_all(manifest, cache)[0] == rows


def test_without_a_cache_every_epoch_reads(manifest: Manifest) -> None:
    for _ in range(2):
        rows, facts = read_all(manifest, None)
        assert rows == list(range(manifest.num_rows))
        assert counts(facts) == {"bypasses": NUM_ROW_GROUPS, "parquet_opens": NUM_ROW_GROUPS}
        assert facts["bypass_bytes"] == manifest.num_rows * (2 * 4 + 8 + 4)


def test_what_does_not_fit_is_handed_out_uncached(manifest: Manifest, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "small", quota_bytes=1000, min_free_bytes=0)
    for _ in range(2):
        rows, facts = read_all(manifest, cache)
        assert rows == list(range(manifest.num_rows))
        assert counts(facts) == {"bypasses": NUM_ROW_GROUPS, "parquet_opens": NUM_ROW_GROUPS}


def test_damaged_block_is_fetched_again(manifest: Manifest, cache: DiskCache) -> None:
    rows, _ = read_all(manifest, cache)
    paths = sorted((cache.path / "blocks").iterdir())
    os.truncate(paths[0], 100)
    content = bytearray(paths[1].read_bytes())
    content[-50] ^= 1
    paths[1].write_bytes(content)
    again, facts = read_all(manifest, cache)
    assert again == rows
    assert counts(facts) == {"hits": 3, "quarantined": 2, "stores": 2, "parquet_opens": 2}
    assert counts(read_all(manifest, cache)[1]) == {"hits": NUM_ROW_GROUPS}


def test_another_transform_never_hits(manifest: Manifest, cache: DiskCache) -> None:
    read_all(manifest, cache)
    other = Transform(x=Dense(["x1", "x0"]), id=Dense("id", dtype="float64"), label=Label("clicked"))
    rows, facts = read_all(manifest, cache, other, array="x")
    assert "hits" not in facts
    assert rows[1::2] == list(range(manifest.num_rows))


def test_function_sees_the_selected_columns_and_another_selection_never_hits(
    manifest: Manifest, cache: DiskCache
) -> None:
    names = Transform(fn=lambda batch: {"n": np.full(batch.num_rows, batch.num_columns)}, version="1")
    all_columns, _ = read_all(manifest, cache, names, array="n")
    fewer = scan(manifest.root, columns=["x0", "id"])
    two, facts = read_all(fewer, cache, names, array="n")
    assert set(all_columns) == {len(manifest.columns)} and set(two) == {2}
    assert "hits" not in facts


def test_rewritten_source_never_hits(manifest: Manifest, cache: DiskCache, parquet_folder: WriteParquet) -> None:
    read_all(manifest, cache)
    time.sleep(0.01)
    parquet_folder({"a.parquet": ROWS["a.parquet"]}, seed=1)
    rescanned = scan(manifest.root)
    rows, facts = read_all(rescanned, cache, array="x")
    assert counts(facts) == {"hits": 3, "stores": 2, "parquet_opens": 2}
    assert rows == read_all(rescanned, None, array="x")[0]
    with pytest.raises(SourceChanged):
        read_all(manifest, None)


def test_open_requests_share_one_read(manifest: Manifest, cache: DiskCache, opened: list[str]) -> None:
    source = LocalSource(Dataset(manifest, TRANSFORM), cache, counters=Counters())
    futures = [source.request(2) for _ in range(10)]
    assert [future.result(60).rows for future in futures] == [10] * 10
    assert len(opened) == 1
    source.close()


def test_sources_of_one_process_read_each_row_group_once(
    manifest: Manifest, cache: DiskCache, opened: list[str]
) -> None:
    threads = [threading.Thread(target=read_all, args=(manifest, cache)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == NUM_ROW_GROUPS


def test_processes_that_share_a_cache_read_each_row_group_once(
    parquet_folder: WriteParquet, cache: DiskCache, python: Callable[..., subprocess.Popen[str]]
) -> None:
    manifest = scan(parquet_folder({"a.parquet": [20] * 12, "b.parquet": [7] * 8}))
    payload = pickle.dumps((cache, Dataset(manifest, TRANSFORM))).hex()
    readers = [python(READ_ALL, payload) for _ in range(3)]
    for reader in readers:
        assert reader.stdout and reader.stdout.readline() == "ready\n"
    for reader in readers:
        assert reader.stdin
        reader.stdin.write("\n")
        reader.stdin.flush()
    replies = [json.loads(reader.communicate(timeout=60)[0]) for reader in readers]
    assert all(right for right, _ in replies)
    for name, total in {"parquet_opens": 20, "stores": 20, "hits": 40, "bypasses": 0}.items():
        assert sum(facts.get(name, 0) for _, facts in replies) == total, name


def test_error_reaches_the_future_and_the_source_goes_on(manifest: Manifest, cache: DiskCache) -> None:
    def fails_on_second(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
        if batch.num_rows == 20:
            raise ValueError("boom")
        return {"id": np.asarray(batch.column("id"))}

    source = LocalSource(Dataset(manifest, Transform(fn=fails_on_second, version="1")), cache, counters=Counters())
    futures = [source.request(index) for index in range(3)]
    assert futures[0].result(60).rows == 30
    with pytest.raises(TransformFailed, match="boom"):
        futures[1].result(60)
    assert futures[2].result(60).rows == 10
    source.close()
    with cache.single_flight(min(path.stem for path in (cache.path / "blocks").iterdir()), 0.0) as free:
        assert free


def test_close_returns_in_time_though_a_read_is_stuck(
    manifest: Manifest, cache: DiskCache, stuck: threading.Event, left_over: Callable[[Path], list[str]]
) -> None:
    source = LocalSource(Dataset(manifest, TRANSFORM), cache, counters=Counters())
    futures = [source.request(index) for index in range(NUM_ROW_GROUPS)]
    assert stuck.wait(60)
    start = time.monotonic()
    source.close(timeout_s=60.0)
    assert time.monotonic() - start < 20.0, "a stuck read is abandoned, not waited for"
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(0)
    assert left_over(cache.path) == []
    assert not [thread.name for thread in threading.enumerate() if thread.name == "forebay-data"]
    for lock in (cache.path / "locks").iterdir():
        assert is_free(lock), lock
    with pytest.raises(LoaderClosed):
        source.request(0)
    source.close()


def is_free(path: Path) -> bool:
    lock = try_lock(path)
    if lock:
        lock.release()
    return lock is not None


def test_a_stuck_reader_delays_another_process_only_for_a_time(manifest: Manifest, cache: DiskCache) -> None:
    source = LocalSource(
        Dataset(manifest, TRANSFORM), cache, counters=Counters(), policy=ReadPolicy(attempts=100, deadline_s=0.2)
    )
    read_all(manifest, cache)
    (path, *_) = (cache.path / "blocks").iterdir()
    path.unlink()
    with cache.single_flight(path.stem, 1.0) as alone:
        assert alone
        futures = [source.request(index) for index in range(NUM_ROW_GROUPS)]
        assert sum(future.result(60).rows for future in futures) == manifest.num_rows
    source.close()


def test_data_set_is_held_while_the_source_is_open(manifest: Manifest, cache: DiskCache) -> None:
    source = LocalSource(Dataset(manifest, TRANSFORM), cache, counters=Counters())
    source.request(0).result(60)
    (use,) = cache.datasets()
    lock = cache._directory.use_lock(use.dataset)
    assert not is_free(lock)
    child = os.fork()
    if child == 0:
        source.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert not is_free(lock), "a child that closes what it inherited does not let go for its parent"
    source.close()
    assert is_free(lock)


def test_forked_child_reads_while_its_parent_does(manifest: Manifest, cache: DiskCache) -> None:
    source = LocalSource(Dataset(manifest, TRANSFORM), cache, counters=Counters())
    first = source.request(0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rows = sum(source.request(index).result(60).rows for index in range(NUM_ROW_GROUPS))
            source.close()
            status = 0 if rows == manifest.num_rows else 2
        finally:
            os._exit(status)
    assert first.result(60).rows == 30
    assert os.waitpid(child, 0)[1] == 0
    assert source.request(4).result(60).rows == 5
    source.close()


def test_many_wait_for_storage_and_few_take_a_core(
    parquet_folder: WriteParquet, opened: list[str], stuck_transform: Gate
) -> None:
    manifest = scan(parquet_folder({"a.parquet": [10] * 12}))
    workers = DataWorkers(core_share=0.01, num_reads=4)
    source = LocalSource(Dataset(manifest, stuck_transform.transform), None, counters=Counters(), workers=workers)
    futures = [source.request(index) for index in range(12)]
    assert stuck_transform.entered.wait(60)
    until(lambda: len(opened) == 4)
    time.sleep(0.05)
    assert (len(opened), stuck_transform.most_inside) == (4, 1), (
        "one is transformed, three are read and wait for a core"
    )
    stuck_transform.go.set()
    assert sum(future.result(60).rows for future in futures) == 120
    assert stuck_transform.most_inside == 1
    source.close()


def test_files_of_this_machine_are_read_few_at_once(manifest: Manifest) -> None:
    distant = replace(manifest, root="s3://bucket" + manifest.root)
    for read_from, num_reads in ((manifest, 2), (distant, 8)):
        with closing(
            LocalSource(Dataset(read_from, TRANSFORM), None, counters=Counters(), workers=DataWorkers(core_share=0.01))
        ) as source:
            assert source._threads.pool.num_reads == num_reads


def test_close_does_not_wait_for_threads_that_wait_for_a_core(manifest: Manifest, stuck_transform: Gate) -> None:
    workers = DataWorkers(core_share=0.01, num_reads=4)
    source = LocalSource(Dataset(manifest, stuck_transform.transform), None, counters=Counters(), workers=workers)
    for index in range(4):
        source.request(index)
    assert stuck_transform.entered.wait(60)
    source.close(timeout_s=0.1)
    until(lambda: sum(thread.name == "forebay-data" for thread in threading.enumerate()) == 1)
    stuck_transform.go.set()
    until(lambda: not any(thread.name == "forebay-data" for thread in threading.enumerate()))
    assert stuck_transform.num_calls == 1, "the others never began"


def test_local_cache_keeps_to_its_spec(manifest: Manifest, tmp_path: Path) -> None:
    spec = CacheSpec(path=str(tmp_path / "cache"), quota_bytes=1 << 20, min_free_bytes=0, core_share=0.5, num_reads=6)
    provider = pickle.loads(pickle.dumps(LocalCache(spec, num_processes=2)))
    source = provider.source(Dataset(manifest, TRANSFORM), Counters())
    workers = source._facts[3]
    assert (workers.core_share, workers.num_reads) == (0.25, 3)
    assert source.request(0).result(60).rows == 30
    source.close()
    assert provider.disk.used_bytes > 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_only_data_workers_work_and_they_are_nice(
    parquet_folder: WriteParquet, cache: DiskCache, python: Callable[..., subprocess.Popen[str]]
) -> None:
    """No library starts a thread pool: only data workers take processor time."""
    manifest = scan(parquet_folder({"a.parquet": [20_000] * 4}))
    transform = Transform(x=Dense(["x0", "x1"]), tags=Ragged("tags", max_len=4), s=Categorical("s", buckets=8))
    reader = python(THREADS, pickle.dumps((cache, Dataset(manifest, transform))).hex())
    reply = json.loads(reader.communicate(timeout=60)[0])
    niceness = max(os.nice(0), NICENESS)
    assert reply["niceness"] == [niceness] * len(reply["niceness"]) and reply["niceness"]
    assert reply["others"] == {}


class Elsewhere:
    """Provider that is its own source."""

    def source(self, dataset: Dataset, counters: Counters) -> BlockSource:
        return self

    def request(self, index: int) -> Future[Block]:
        raise NotImplementedError

    def close(self, timeout_s: float = 5.0) -> None: ...


def test_disk_cache_and_none_are_served_by_this_process(parquet_folder: Callable[..., Path], cache: DiskCache) -> None:
    dataset = Dataset(scan(parquet_folder({"a.parquet": [3]})), Transform(x=Dense("x0")))
    for given in (cache, None):
        source = open_source(given, dataset, Counters())
        assert isinstance(source, LocalSource)
        assert source.request(0).result(10).rows == 3
        source.close()


def test_a_provider_serves_itself(parquet_folder: Callable[..., Path]) -> None:
    provider = Elsewhere()
    dataset = Dataset(scan(parquet_folder({"a.parquet": [3]})), Transform(x=Dense("x0")))
    assert open_source(provider, dataset, Counters()) is provider
