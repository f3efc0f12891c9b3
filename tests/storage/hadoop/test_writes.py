"""Files on HDFS appear whole, or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from tests.storage.conftest import ObjectStore
from tests.storage.servers.hdfs import HdfsServers

import forebay as fb
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import resolve

pytestmark = pytest.mark.variation("two JVMs")

# More than a block, so that readers of the file itself would see the first one.
WRITES_HALF = """
import sys, time
from forebay.storage.filesystem import resolve

place = resolve(sys.argv[1])
stream = place.fs.open_output_stream(place.path)
stream.write(bytes(6 << 20))
print("half", flush=True)
time.sleep(600)
"""


def content_of(uri: str) -> bytes:
    place = resolve(uri)
    with place.fs.open_input_stream(place.path) as stream:
        return bytes(stream.read())


def test_writer_that_is_killed_leaves_the_old_file(hdfs: ObjectStore, parquet_folder: Callable[..., Path]) -> None:
    uri = hdfs.upload(parquet_folder({"a.parquet": [8]}), "killed")
    old = content_of(f"{uri}/a.parquet")
    command = [sys.executable, "-c", WRITES_HALF, f"{uri}/a.parquet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        assert content_of(f"{uri}/a.parquet") == old
        writer.kill()
    assert content_of(f"{uri}/a.parquet") == old
    assert [file.path for file in fb.scan(uri).files] == ["a.parquet"]  # its draft is hidden
    write_atomically(f"{uri}/a.parquet", b"new")
    assert content_of(f"{uri}/a.parquet") == b"new"


@pytest.fixture
def no_data_node(hadoop: HdfsServers) -> Iterator[Callable[[], None]]:
    """Kill the DataNode. It is up again after the test."""
    yield lambda: hadoop.signal("datanode", signal.SIGKILL)
    hadoop.start("datanode")
    hadoop.wait()


def test_write_that_fails_leaves_the_old_file(hdfs: ObjectStore, no_data_node: Callable[[], None]) -> None:
    place = resolve(hdfs.uri("failed/a"))
    write_atomically(place.uri, b"")  # no block, which could not be read while there is no DataNode
    with pytest.raises(OSError, match=r"."), place.fs.open_output_stream(place.path) as stream:  # noqa: PT012
        stream.write(bytes(1 << 20))
        no_data_node()
        for _ in range(200):
            stream.write(bytes(1 << 20))
    assert place.fs.get_file_info(place.path).size == 0
    assert [info.base_name for info in place.fs.get_file_info(fs.FileSelector("/bucket/failed"))] == ["a"]
