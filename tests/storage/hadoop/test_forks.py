"""Processes that were forked from one that reads HDFS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.conftest import ObjectStore

pytestmark = pytest.mark.variation("two JVMs")

# Both processes read at once, for longer than connections are kept (3 s), and end as Python programs do.
READS_IN_BOTH = """
import os, sys, time
import forebay as fb
from forebay.data.parquet.reading import RowGroupReader

reader = RowGroupReader(fb.scan(sys.argv[1]))
expected = [reader.read(index, ["id"])["id"].to_pylist() for index in range(3)]
child = os.fork()
end = time.monotonic() + 4
while time.monotonic() < end:
    for index in range(3):
        assert reader.read(index, ["id"])["id"].to_pylist() == expected[index]
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(expected[2])
"""


def test_forked_child_and_its_parent_read_side_by_side(hdfs: ObjectStore, parquet_folder: Callable[..., Path]) -> None:
    uri = hdfs.upload(parquet_folder({"a.parquet": [4, 5, 6]}), "forked")
    command = [sys.executable, "-c", READS_IN_BOTH, uri]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.strip() == str(list(range(9, 15))), ended.stderr
