"""A name service: two NameNodes, of which one is active."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.storage.conftest import needs
from tests.storage.servers.hdfs import NoHadoop, installed_jars
from tests.storage.servers.hdfs_pair import NameNodePair

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.runtime.metrics import Counters
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import resolve

pytestmark = pytest.mark.variation("three JVMs")


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[NameNodePair]:
    """Two NameNodes in standby."""
    needs("hdfs_native", "hdfs-native")
    try:
        jars = installed_jars()
    except NoHadoop as error:
        pytest.skip(str(error))
    pair = NameNodePair(jars, tmp_path_factory.mktemp("pair"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(pair.folder))
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()


def test_reads_follow_the_active_one(pair: NameNodePair, parquet_folder: Callable[..., Path]) -> None:
    """In one process, before and after a hand-over.

    Before, the first of the pair is in standby.
    """
    pair.make_active("nn2")
    content = (parquet_folder({"a.parquet": [30, 20]}) / "a.parquet").read_bytes()
    place = resolve("hdfs://ns/data/a.parquet")
    place.fs.create_dir("/data", recursive=True)
    write_atomically(place.uri, content)
    counters = Counters()
    reader = RowGroupReader(fb.scan("hdfs://ns/data"), counters=counters)
    assert reader.read(0).num_rows == 30
    pair.make_active("nn1")
    assert reader.read(1).num_rows == 20
    write_atomically("hdfs:///data/b.parquet", content)  # `fs.defaultFS` is the pair
    assert fb.scan("hdfs:///data").num_rows == 100
    assert counters["retries"] == 0  # hdfs-native asks the other one by itself
