"""Addresses, users and options of hdfs://, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import InvalidOption, MissingPackage
from forebay.storage.filesystem import resolve
from forebay.storage.hadoop.location import _url


def test_port_is_added_unless_it_is_a_name_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.ha.namenodes.ns</name><value>a,b</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert _url("hdfs", "name") == "hdfs://name:8020"
    assert _url("hdfs", "name:9000") == "hdfs://name:9000"
    assert _url("hdfs", "ns") == "hdfs://ns"
    assert _url("hdfs", "") == ""


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("hdfs://nobody-here@name/x", "Set HADOOP_USER_NAME=nobody-here"),
        ("hdfs://name/x?user=nobody-here", "Set HADOOP_USER_NAME=nobody-here"),
        ("hdfs://name/x?replication=many", "replication=many"),
        ("hdfs://me:long-password@name/x", "no passwords"),
        ("hdfs://name/x?replicaton=2", r"name/x: hdfs:// has no option replicaton.*A name that has a \? here"),
        ("hdfs://name/a?b=c.parquet", "no option b"),
    ],
)
def test_what_the_client_cannot_take_is_refused(uri: str, said: str) -> None:
    pytest.importorskip("hdfs_native")
    with pytest.raises(InvalidOption, match=said):
        resolve(uri)


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hdfs_native", None)
    with pytest.raises(MissingPackage, match=r"pip install 'forebay\[hdfs\]'"):
        resolve("hdfs://not-asked-before/x")
