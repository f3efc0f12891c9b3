"""Blocks built in worker processes: the same as by threads, whatever ends a process."""

from __future__ import annotations

import errno
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.descriptors import no_descriptors
from tests.waiting import until

from forebay.data.cache.builders import worker_processes
from forebay.data.cache.builders.data_workers import WORKERS_VARIABLE, DataWorkers, processes_for
from forebay.data.cache.builders.worker_processes import DataProcesses
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import LocalSource
from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.scan import scan
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Categorical, Dense, Label, Ragged
from forebay.data.transform.transform import Transform
from forebay.errors import CacheUnusable, ForebayError, ReadFailed, TransformFailed
from forebay.runtime.metrics import Counters

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")
WORKERS = DataWorkers(core_share=1.0, num_reads=4)
ONE = DataWorkers(core_share=1e-3, num_reads=4)
KINDS = Transform(
    x=Dense(["x0", "x1"]),
    id=Dense("id", dtype="float64"),
    label=Label("clicked"),
    s=Categorical("s", buckets=8),
    tags=Ragged("tags", max_len=3),
)


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(WORKERS_VARIABLE, "processes")
    monkeypatch.setattr(worker_processes, "KEPT_S", 0.0)
    yield
    until(lambda: not left())


@pytest.fixture
def manifest(parquet_folder: Callable[..., Path]) -> Manifest:
    return scan(parquet_folder({"a.parquet": [30, 20, 0], "b.parquet": [10, 40, 5]}))


def left() -> list[int]:
    """Process ids of workers that have not ended, 0 of one that has not started."""
    pool = worker_processes._pool
    return [worker.pid for worker in list(pool._workers) if pool._is_ready(worker) or worker in pool._workers]


def is_alive(pid: int) -> bool:
    """Whether a process runs. A worker that has ended is a zombie until its server asks for it."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def ready() -> list[int]:
    """Wait until a worker is ready. Returns the process ids of all that are."""

    def taken() -> bool:
        worker = worker_processes._pool.take(64)
        if worker:
            worker_processes._pool.put_back(worker)
        return worker is not None

    until(taken)
    return [worker.pid for worker in worker_processes._pool._workers if worker.pid]


def built_in(row_group: pa.Table) -> dict[str, Any]:
    return {"id": row_group["id"].to_numpy(), "pid": np.full(len(row_group), os.getpid())}


PIDS = Transform(fn=built_in, version="1")


def read_all(
    manifest: Manifest, cache: DiskCache | None, transform: Transform = KINDS
) -> tuple[list[Block], dict[str, float]]:
    counters = Counters()
    with closing(LocalSource(Dataset(manifest, transform), cache, counters=counters, workers=WORKERS)) as source:
        ready()
        futures = [source.request(index) for index in range(len(manifest))]
        blocks = [future.result(60) for future in futures]
    return blocks, {name: value for name, value in counters.as_dict().items() if not name.endswith("_s")}


def same(left: Block, right: Block) -> bool:
    return left.rows == right.rows and all(
        np.array_equal(array, right.arrays[name]) and array.dtype == right.arrays[name].dtype
        for name, array in left.arrays.items()
    )


@pytest.mark.parametrize("quota", [16 << 20, 1, None], ids=["cached", "over quota", "without a cache"])
def test_blocks_and_counters_are_those_of_threads(
    manifest: Manifest, tmp_path: Path, quota: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cache(name: str) -> DiskCache | None:
        return DiskCache(tmp_path / name, quota_bytes=quota, min_free_bytes=0) if quota else None

    blocks, counts = read_all(manifest, cache("processes"))
    before = open_files()
    blocks_again, counts_again = read_all(manifest, cache("processes"))
    assert len(open_files()) <= len(before) + 2 * len(manifest), "no file stays open"
    monkeypatch.setenv(WORKERS_VARIABLE, "threads")
    counters = Counters()
    with closing(LocalSource(Dataset(manifest, KINDS), cache("threads"), counters=counters, workers=WORKERS)) as source:
        expected = [source.request(index).result(60) for index in range(len(manifest))]
    sums = {name: value for name, value in counters.as_dict().items() if not name.endswith("_s")}
    assert all(map(same, blocks, expected))
    assert all(map(same, blocks_again, expected))
    varying = {"reads_allowed", "footer_reads", "footer_bytes"}
    assert {n: v for n, v in counts.items() if n not in varying} == {n: v for n, v in sums.items() if n not in varying}
    assert (counts_again.get("hits") == len(manifest)) == (quota == 16 << 20)


def open_files() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


def test_blocks_are_built_outside_of_this_process(manifest: Manifest, cache: DiskCache) -> None:
    blocks, _ = read_all(manifest, cache, PIDS)
    pids = {int(pid) for block in blocks for pid in block.arrays["pid"].ravel()}
    assert pids
    assert os.getpid() not in pids
    assert np.concatenate([block.arrays["id"].ravel() for block in blocks]).tolist() == list(range(manifest.num_rows))


def test_accounts_are_right_once_the_source_is_closed(manifest: Manifest, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", quota_bytes=50 << 30, min_free_bytes=0)
    read_all(manifest, cache)
    until(lambda: [use.blocks for use in cache.datasets()] == [len(manifest)])
    until(lambda: not list((tmp_path / "cache" / "temp").iterdir()))
    reserved = cache.used_bytes
    assert DiskCache(tmp_path / "cache", quota_bytes=50 << 30, min_free_bytes=0).used_bytes == reserved
    cache.verify()
    assert cache.used_bytes == reserved, "as counted from the files"


def test_a_killed_worker_leaves_its_blocks_and_no_reservation(manifest: Manifest, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", quota_bytes=50 << 30, min_free_bytes=0)
    with closing(LocalSource(Dataset(manifest, KINDS), cache, counters=Counters(), workers=WORKERS)) as source:
        ready()
        for index in range(3):
            source.request(index).result(60)
        for pid in ready():
            os.kill(pid, signal.SIGKILL)
        blocks = [source.request(index).result(60) for index in range(len(manifest))]
    assert sum(block.rows for block in blocks) == manifest.num_rows
    until(lambda: not left())
    again = DiskCache(tmp_path / "cache", quota_bytes=50 << 30, min_free_bytes=0)
    assert [use.blocks for use in again.datasets()] == [len(manifest)]
    assert not list((tmp_path / "cache" / "temp").iterdir())


def test_a_block_that_ends_three_workers_is_named(manifest: Manifest, cache: DiskCache) -> None:
    def crash(row_group: pa.Table) -> dict[str, Any]:
        if len(row_group) == 40:
            os._exit(11)
        return {"id": row_group["id"].to_numpy()}

    transform = Transform(fn=crash, version="1")
    with closing(LocalSource(Dataset(manifest, transform), cache, counters=Counters(), workers=WORKERS)) as source:
        ready()
        with pytest.raises(ReadFailed, match=r"3 data workers ended at row group 1 of .*b\.parquet: out"):
            source.request(3).result(60)
        assert source.request(0).result(60).rows == 30, "the source goes on"


def test_a_block_that_ends_the_last_worker_waits_for_none(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(row_group: pa.Table) -> dict[str, Any]:
        os._exit(11)

    def refuse() -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    transform = Transform(fn=crash, version="1")
    with closing(LocalSource(Dataset(manifest, transform), None, counters=Counters(), workers=ONE)) as source:
        ready()
        monkeypatch.setattr(worker_processes._pool._server, "post_fork", refuse)
        began = time.monotonic()
        with pytest.raises(ReadFailed, match=r"^1 data worker ended at row group 1 of .*, and no other is ready: out"):
            source.request(3).result(120)
        assert time.monotonic() - began < worker_processes._START_S


@pytest.mark.parametrize("at", ["open a line", "receive a block"])
def test_without_a_descriptor_threads_build_and_workers_stay(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def refuse(*_: object) -> None:
        if at == "open a line":
            raise OSError(errno.EMFILE, "Too many open files")
        raise RuntimeError("received 0 items of ancdata")

    with closing(LocalSource(Dataset(manifest, KINDS), None, counters=Counters(), workers=ONE)) as source:
        (pid,) = ready()
        if at == "open a line":
            monkeypatch.setattr("forebay.runtime.fork_server.socket.socketpair", refuse)
        else:
            monkeypatch.setattr(worker_processes, "receive_descriptor", refuse)
        assert source.request(3).result(60).rows == 40
        assert left() == [pid]


def test_a_timeout_of_the_user_s_sockets_ends_no_worker(manifest: Manifest) -> None:
    socket.setdefaulttimeout(0.01)
    try:
        with closing(LocalSource(Dataset(manifest, PIDS), None, counters=Counters(), workers=ONE)) as source:
            (pid,) = ready()
            blocks = [source.request(index).result(60) for index in (0, 1, 3, 4)]
            assert {each for block in blocks for each in block.arrays["pid"].tolist()} == {pid}
            assert left() == [pid]
    finally:
        socket.setdefaulttimeout(None)


def test_a_line_that_has_no_descriptor_leaves_the_worker_as_it_was(manifest: Manifest) -> None:
    with closing(LocalSource(Dataset(manifest, KINDS), None, counters=Counters(), workers=ONE)) as source:
        (pid,) = ready()
        worker = worker_processes._pool._workers[0]
        for but in range(4):
            refused = pytest.raises(OSError, match="Too many open files") if but < 2 else nullcontext()
            with no_descriptors(but=but), refused:
                worker.line().close()
        assert source.request(3).result(60).rows == 40
        assert (left(), worker.num_busy, len(worker.idle)) == ([pid], 0, 1)


def test_a_file_that_is_cut_while_it_is_decoded_ends_no_trainer(
    parquet_folder: Callable[..., Path], cache: DiskCache
) -> None:
    """The pages are mapped: reading behind the new end of the file kills a worker, not this process."""
    folder = parquet_folder({"a.parquet": [50_000]})
    manifest, path = scan(folder), folder / "a.parquet"

    def cut(row_group: pa.Table) -> dict[str, Any]:
        os.truncate(path, 100)
        return {"id": row_group["id"].to_numpy(), "x3": row_group["x3"].to_numpy()}

    transform = Transform(fn=cut, version="1")
    with closing(LocalSource(Dataset(manifest, transform), cache, counters=Counters(), workers=WORKERS)) as source:
        ready()
        with pytest.raises(ForebayError, match=re.escape(str(path))):
            source.request(0).result(60)
    assert cache.keys() == []


def test_an_error_is_the_one_of_threads(manifest: Manifest, cache: DiskCache) -> None:
    def wrong(row_group: pa.Table) -> dict[str, Any]:
        raise KeyError("no such city")

    with closing(
        LocalSource(Dataset(manifest, Transform(fn=wrong, version="1")), cache, counters=Counters(), workers=WORKERS)
    ) as source:
        ready()
        with pytest.raises(TransformFailed, match="no such city") as found:
            source.request(0).result(60)
    assert "in wrong" in str(found.value.__cause__), "the traceback of the worker"


@pytest.mark.parametrize("error", [ArithmeticError, SystemExit])
def test_what_only_a_worker_raises_ends_no_worker(
    error: type[BaseException], manifest: Manifest, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error is not a crash: this process builds the block, and raises the same or goes on."""
    here = os.getpid()

    class Refusing(Dense):
        def arrays(self, name: str, table: Any) -> dict[str, Any]:
            if os.getpid() != here:
                raise error("in a library")
            return super().arrays(name, table)

    with closing(
        LocalSource(Dataset(manifest, Transform(x=Refusing(["x0"]))), cache, counters=Counters(), workers=WORKERS)
    ) as source:
        pids = ready()
        assert [source.request(index).result(60).rows for index in range(3)] == [30, 20, 10]
        assert set(pids) <= set(ready()), "no worker has ended"


def test_what_cannot_be_pickled_is_built_here(
    manifest: Manifest, cache: DiskCache, caplog: pytest.LogCaptureFixture
) -> None:
    lock = threading.Lock()

    def locked(row_group: pa.Table) -> dict[str, Any]:
        with lock:
            return built_in(row_group)

    blocks, _ = read_all(manifest, cache, Transform(fn=locked, version="1"))
    assert {int(pid) for block in blocks for pid in block.arrays["pid"].ravel()} == {os.getpid()}
    assert [record for record in caplog.records if "Threads of this process build the blocks" in record.message]


class Licensed:
    """Value that cannot be loaded in another process."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        if owner != os.getpid():
            raise RuntimeError("no licence here")

    def __reduce__(self) -> tuple[Any, ...]:
        return Licensed, (self.owner,)


def test_what_cannot_be_loaded_in_a_worker_is_built_here(
    manifest: Manifest, cache: DiskCache, caplog: pytest.LogCaptureFixture
) -> None:
    value = Licensed(os.getpid())

    def licensed(row_group: pa.Table) -> dict[str, Any]:
        assert value.owner
        return built_in(row_group)

    blocks, _ = read_all(manifest, cache, Transform(fn=licensed, version="1"))
    assert {int(pid) for block in blocks for pid in block.arrays["pid"].ravel()} == {os.getpid()}
    assert "RuntimeError: no licence here" in caplog.text


def test_no_zombie_stays_of_workers_that_ended(manifest: Manifest, cache: DiskCache) -> None:
    first = DataProcesses(2)
    pids = ready()
    first.close()
    until(lambda: not left())
    second = DataProcesses(1)
    ready()
    second.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_close_ends_what_waits_for_a_worker(manifest: Manifest, tmp_path: Path, cache: DiskCache) -> None:
    begun = tmp_path / "begun"

    def sleep(row_group: pa.Table) -> dict[str, Any]:
        begun.touch()
        time.sleep(120)
        return {"id": row_group["id"].to_numpy()}

    source = LocalSource(
        Dataset(manifest, Transform(fn=sleep, version="1")), cache, counters=Counters(), workers=WORKERS
    )
    ready()
    futures = [source.request(index) for index in range(len(manifest))]
    until(begun.exists)
    began = time.monotonic()
    source.close(timeout_s=60.0)
    assert time.monotonic() - began < 30
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(0)
    for pid in filter(None, left()):
        os.kill(pid, signal.SIGKILL)  # it would stay until its function returns


OWNER = """
import pickle, sys, time
from forebay.data.cache.builders import worker_processes
from forebay.data.cache.builders.data_workers import WORKERS_VARIABLE, DataWorkers, processes_for
from forebay.data.cache.source import LocalSource
from forebay.runtime.metrics import Counters
cache, dataset = pickle.loads(bytes.fromhex(sys.argv[1]))
source = LocalSource(dataset, cache, counters=Counters(), workers=DataWorkers(core_share=1.0))
while not (worker := worker_processes._pool.take(64)):
    time.sleep(0.01)
source.request(0).result(60)
print(worker_processes._pool._server._process.pid, *[each.pid for each in worker_processes._pool._workers], flush=True)
input()
"""


@pytest.mark.parametrize("end", ["exit", "SIGKILL", "SIGTERM"])
def test_workers_end_with_their_owner(
    manifest: Manifest, cache: DiskCache, python: Callable[..., subprocess.Popen[str]], end: str
) -> None:
    owner = python(OWNER, pickle.dumps((cache, Dataset(manifest, KINDS))).hex())
    assert owner.stdout and owner.stdin
    pids = [int(word) for word in owner.stdout.readline().split() if int(word)]
    assert len(pids) >= 2
    assert all(map(is_alive, pids))
    if end == "exit":
        owner.stdin.write("\n")
        owner.stdin.flush()
    else:
        owner.send_signal(signal.Signals[end])
    owner.wait(60)
    until(lambda: not any(map(is_alive, pids)))


def test_a_forked_child_has_workers_of_its_own(manifest: Manifest, cache: DiskCache) -> None:
    with closing(LocalSource(Dataset(manifest, KINDS), cache, counters=Counters(), workers=WORKERS)) as source:
        pids = ready()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                rows = sum(source.request(index).result(60).rows for index in range(len(manifest)))
                source.close()
                theirs = {worker.pid for worker in worker_processes._pool._workers}
                status = 0 if rows == manifest.num_rows and not theirs & set(pids) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sum(source.request(index).result(60).rows for index in range(len(manifest))) == manifest.num_rows
        assert set(ready()) >= set(pids), "they belong to the parent, and go on"


def test_workers_stay_for_the_next_source(
    manifest: Manifest, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "KEPT_S", 60.0)
    first = DataProcesses(2)
    pids = ready()
    first.close()
    second = DataProcesses(1)
    assert set(ready()) >= set(pids[:1])
    monkeypatch.setattr(worker_processes, "KEPT_S", 0.0)
    second.close()


def test_workers_that_are_about_to_end_get_no_work(manifest: Manifest, cache: DiskCache) -> None:
    """They take a request, and never answer: three in a row were taken for a block that ends its workers."""
    first = DataProcesses(2)
    pids = ready()
    first.close()  # with `KEPT_S` 0 they end now
    second = DataProcesses(2)
    assert not set(pids) & {worker.pid for worker in worker_processes._pool._workers}
    second.close()


@pytest.mark.parametrize("by", ["close", "resize"])
def test_workers_that_no_user_is_large_enough_for_end(manifest: Manifest, cache: DiskCache, by: str) -> None:
    small, large = DataProcesses(1), DataProcesses(3)
    until(lambda: len(left()) == 3 and all(left()))
    first, busy, _ = worker_processes._pool._workers
    taken = [worker for _ in range(2) if (worker := worker_processes._pool.take(2))]
    assert {*taken} == {first, busy}
    large.close() if by == "close" else large.resize(1)
    assert worker_processes._pool._workers == [first, busy], "one of them builds"
    for worker in taken:
        worker_processes._pool.put_back(worker)
    assert worker_processes._pool._workers == [first]
    until(lambda: not is_alive(busy.pid))
    large.close()
    small.close()


def test_few_workers_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "_MOST_STARTING", 2)
    many = DataProcesses(5)
    assert len(left()) == 2
    until(lambda: len(ready()) <= len(worker_processes._pool._workers) == 5)
    many.close()


def test_a_worker_is_not_closed_while_a_line_to_it_is_opened() -> None:
    processes = DataProcesses(1)
    ready()
    (worker,) = worker_processes._pool._workers
    removing = threading.Thread(target=lambda: worker_processes._pool.remove(worker))
    with worker.sending:  # as a thread in `line`
        removing.start()
        removing.join(0.2)
        assert not worker.control.closed, "that thread would use a handle that is None"
    removing.join(60)
    with pytest.raises(OSError, match="closed"):
        worker.line()
    processes.close()


def test_a_source_that_cannot_be_opened_leaves_no_workers(
    manifest: Manifest, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise CacheUnusable("its disk is full", path="c")

    monkeypatch.setattr(cache, "lease", refuse)
    with pytest.raises(CacheUnusable):
        LocalSource(Dataset(manifest, KINDS), cache, counters=Counters(), workers=WORKERS)
    assert not worker_processes._pool._users


def test_threads_where_there_is_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKERS_VARIABLE)
    assert [processes_for(cores) for cores in (1, 2, 14)] == [0, 2, 14]
    monkeypatch.setenv(WORKERS_VARIABLE, "threads")
    assert processes_for(14) == 0
