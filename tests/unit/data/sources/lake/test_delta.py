"""Delta Lake tables: what only they have. Their laws are in `test_tables.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.sources.lake.delta_commits import commit_deletion_vector

import forebay as fb
from forebay.errors import InvalidOption, NoFiles


def test_partitions_cost_no_bytes_and_prune(delta: Any) -> None:
    manifest = fb.scan(delta.uri, columns=["day", "site"], where="site == 'x=y'")
    assert manifest.num_rows == sum(row["site"] == "x=y" for row in delta.rows(5))
    assert manifest.source_bytes.sum() == 0


def test_versions_have_numbers_from_0(delta: Any) -> None:
    with pytest.raises(InvalidOption, match="number of a version"):
        fb.scan(delta.uri, version=-1)


def test_an_unknown_kind_of_deletion_vector(delta: Any) -> None:
    commit_deletion_vector(delta.folder, -1, [0, 2], version=6, kind="q")
    with pytest.raises(InvalidOption, match="OPTIMIZE") as caught:
        fb.scan(delta.uri)
    assert len(str(caught.value)) < 1000


def test_mapped_columns_are_refused(delta: Any) -> None:
    log = delta.folder / "_delta_log" / f"{6:020}.json"
    commits = [line for commit in sorted(log.parent.glob("*.json")) for line in commit.read_text().splitlines()]
    metadata = [json.loads(line) for line in commits if '"metaData"' in line][-1]
    metadata["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    log.write_text(json.dumps(metadata))
    with pytest.raises(InvalidOption, match="map|Mapping"):
        fb.scan(delta.uri)


def test_a_table_without_rows(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path / "empty", pa.schema({"id": pa.int64()}).empty_table())
    with pytest.raises(NoFiles):
        fb.scan(tmp_path / "empty")


def test_a_column_in_other_letters_is_not_taken_for_nulls(tmp_path: Path) -> None:
    """Spark reads it, whatever the case of its letters."""
    pytest.importorskip("deltalake").write_deltalake(tmp_path / "t", pa.table({"id": [1, 2], "price": [1.0, 2.0]}))
    pq.write_table(pa.table({"ID": [1, 2], "price": [1.0, 2.0]}), next((tmp_path / "t").glob("*.parquet")))
    with pytest.raises(InvalidOption, match="has the column 'ID', which is 'id' in its table"):
        fb.scan(tmp_path / "t", footers=False)
    assert fb.scan(tmp_path / "t", columns=["price"], footers=False).num_rows == 2


def test_a_damaged_checkpoint_is_no_failure_of_storage(delta: Any) -> None:
    pytest.importorskip("deltalake").DeltaTable(delta.folder).create_checkpoint()
    checkpoint = next((delta.folder / "_delta_log").glob("*.checkpoint.parquet"))
    content = bytearray(checkpoint.read_bytes())
    content[-200:-100] = b"\xff" * 100
    checkpoint.write_bytes(content)
    with pytest.raises(InvalidOption, match=rf"{checkpoint.name} is not a file of a Delta Lake log"):
        fb.scan(delta.uri, footers=False)
