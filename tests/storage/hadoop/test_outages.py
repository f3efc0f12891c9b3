"""Nodes of HDFS that die, freeze or fall silent.

The result is the same rows, or an error that says what to do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.storage.conftest import Epochs, ObjectStore
from tests.storage.servers.hdfs import HdfsServers
from tests.storage.servers.silent_line import SilentLine

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import ReadFailed, SourceChanged
from forebay.runtime.metrics import Counters
from forebay.storage.filesystem import resolve
from forebay.storage.hadoop import clients
from forebay.storage.retry import ReadPolicy

pytestmark = pytest.mark.variation("two JVMs")

Folder = Callable[..., Path]


@pytest.fixture
def all_there(hadoop: HdfsServers) -> Iterator[HdfsServers]:
    """Both nodes, up again after the test."""
    yield hadoop
    for name in ("namenode", "datanode"):
        if not hadoop.is_running(name):
            hadoop.start(name)
    hadoop.wait()


@pytest.mark.parametrize("name", ["datanode", "namenode"])
def test_epoch_outlives_a_node_that_is_started_again(
    all_there: HdfsServers, hdfs: ObjectStore, local_files: Path, epochs_of: Callable[..., Epochs], name: str
) -> None:
    expected, _ = epochs_of(fb.scan(local_files), None, 1)
    manifest = fb.scan(hdfs.upload(local_files, f"away-{name}"))
    all_there.signal(name, signal.SIGKILL)
    with ThreadPoolExecutor(1) as pool:
        epoch = pool.submit(epochs_of, manifest, None, 1)
        time.sleep(1)  # its start takes another one at least
        all_there.start(name)  # by this thread: a server ends with the one that started it
        digests, sums = epoch.result()
    assert digests == expected
    assert sums[0]["retries"] > 0


def test_name_node_that_is_down_is_no_missing_file(
    all_there: HdfsServers, hdfs: ObjectStore, parquet_folder: Folder, quick: ReadPolicy
) -> None:
    uri = hdfs.upload(parquet_folder({"a.parquet": [3]}), "down")
    manifest = fb.scan(uri)
    all_there.signal("namenode", signal.SIGKILL)
    counters = Counters()
    with pytest.raises(ReadFailed, match=f"127.0.0.1:{all_there.port}.*4 attempts"):
        RowGroupReader(manifest, quick, counters).read(0)
    assert counters["retries"] == 3
    with pytest.raises(ReadFailed, match=f"127.0.0.1:{all_there.port}.*4 attempts"):
        fb.scan(uri, policy=quick)


def reading_threads() -> int:
    return sum(thread.name == "forebay-read" for thread in threading.enumerate())


def wait_for_reading_threads_to_end() -> None:
    end = time.monotonic() + 30
    while reading_threads() and time.monotonic() < end:
        time.sleep(0.05)
    assert reading_threads() == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> ReadPolicy:
    """Policy with short attempts, and spare ones.

    They end before a client counts as silent. A busy machine needs some more.
    """
    monkeypatch.setattr(clients, "SILENT_S", 1.0)
    return ReadPolicy(attempts=30, deadline_s=1.5, first_wait_s=0.01, max_wait_s=0.05)


def test_silent_connection_is_replaced(
    hadoop: HdfsServers, hdfs: ObjectStore, parquet_folder: Folder, impatient: ReadPolicy
) -> None:
    hdfs.upload(parquet_folder({"a.parquet": [30, 20]}), "silent")
    line = SilentLine(hadoop.port)
    manifest = fb.scan(f"hdfs://127.0.0.1:{line.port}/bucket/silent")
    before = reading_threads()
    line.silence()
    counters = Counters()
    reader = RowGroupReader(manifest, impatient, counters)
    assert [reader.read(index).num_rows for index in range(2)] == [30, 20]
    assert counters["retries"] > 0
    assert reading_threads() - before <= counters["retries"]
    abandoned = counters["retries"]
    for index in (0, 1) * 5:
        reader.read(index)
    assert counters["retries"] == abandoned  # the new client serves them
    line.close()
    wait_for_reading_threads_to_end()


def test_frozen_name_node_is_waited_for(
    all_there: HdfsServers, hdfs: ObjectStore, parquet_folder: Folder, impatient: ReadPolicy
) -> None:
    manifest = fb.scan(hdfs.upload(parquet_folder({"a.parquet": [30, 20]}), "frozen"))
    counters = Counters()
    all_there.signal("namenode", signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(RowGroupReader(manifest, impatient, counters).read, 1)
            time.sleep(4)
            all_there.signal("namenode", signal.SIGCONT)
            assert read.result().num_rows == 20
    finally:
        all_there.signal("namenode", signal.SIGCONT)
    assert counters["retries"] > 0
    wait_for_reading_threads_to_end()


READ_AS_ANOTHER = """
import sys
import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.runtime.metrics import Counters

counters = Counters()
manifest = fb.Manifest.load(sys.argv[1], allow_locations=sys.argv[2])
for ask in (lambda: fb.scan(sys.argv[2]), lambda: RowGroupReader(manifest, counters=counters).read(0)):
    try:
        ask()
    except fb.errors.ReadFailed as error:
        print(error)
print(counters["retries"])
"""


def test_refusal_is_told_after_one_attempt(hdfs: ObjectStore, parquet_folder: Folder, tmp_path: Path) -> None:
    uri = hdfs.upload(parquet_folder({"a.parquet": [3]}), "forbidden/inner")
    fb.scan(uri).save(tmp_path / "m.json")
    folder = resolve(hdfs.uri("forbidden"))
    clients.ask_name_node(folder.fs.handler.fs._address, lambda client: client.set_permission(folder.path, 0o700))
    command = [sys.executable, "-c", READ_AS_ANOTHER, str(tmp_path / "m.json"), uri]
    environment = os.environ | {"HADOOP_USER_NAME": "somebody"}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    listed, read, retries = ended.stdout.splitlines()
    assert "forbidden/inner may not be listed" in listed
    assert "forbidden/inner/a.parquet may not be read" in read
    assert "user=somebody" in read
    assert "\\tat" not in ended.stdout + ended.stderr
    assert retries == "0"


def test_file_that_shrank_has_changed(hdfs: ObjectStore, parquet_folder: Folder, quick: ReadPolicy) -> None:
    """Also under an open reader.

    hdfs-native ends the thread with a panic for a position past the end.
    """
    long, short = parquet_folder({"a.parquet": [300]}), parquet_folder({"a.parquet": [3]}, folder="short")
    manifest = fb.scan(hdfs.upload(long, "shrank"))
    size = manifest.files[0].size
    place = resolve(hdfs.uri("shrank/a.parquet"))
    hdfs.upload(short, "shrank")
    with place.fs.open_input_file(place.path) as opened:
        opened.seek(size)
        assert opened.read(8) == b""
    with pytest.raises(SourceChanged, match=r"shrank/a.parquet changed since the scan"):
        RowGroupReader(manifest, quick).read(0)
