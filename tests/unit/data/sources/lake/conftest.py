"""One history of a table in each format: appended, deleted from, compacted, widened, overwritten, rows masked."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.data.sources.lake.delta_commits import commit_deletion_vector
from tests.unit.data.sources.lake.iceberg_commits import catalog_at, commit_files, position_file, vector_file


@dataclass(frozen=True, kw_only=True)
class LakeCase:
    """A table of some format. `versions` are all of them, oldest first. The last one masks 2 rows.

    `rows(version)` come from the format's own reader.
    """

    uri: str
    folder: Path
    snapshot: str
    versions: list[int]
    rows: Callable[[int], list[dict[str, Any]]]
    package: str
    gone: str


def _rows(first: int, id_type: pa.DataType) -> pa.Table:
    site = ["a b", "é", None, "x=y"]
    ids = pa.array(range(first, first + 16), id_type)
    return pa.table({"id": ids, "site": site * 4, "day": [datetime.date(2024, 1, 1)] * 16})


def delta_case(tmp_path: Path) -> LakeCase:
    deltalake = pytest.importorskip("deltalake")
    path = tmp_path / "my table"
    write = deltalake.write_deltalake
    write(path, _rows(0, pa.int64()), partition_by=["site", "day"])
    write(path, _rows(16, pa.int64()), mode="append")
    deltalake.DeltaTable(path).delete("id % 5 = 0")
    deltalake.DeltaTable(path).optimize.compact()
    more = _rows(32, pa.int64()).append_column("price", pa.array([1.5] * 16))
    write(path, more.append_column("tags", pa.array([[1, 2]] * 16)), mode="append", schema_mode="merge")
    commit_deletion_vector(path, -1, [0, 2], version=5)
    return LakeCase(
        uri=str(path),
        folder=path,
        snapshot="delta",
        versions=list(range(6)),
        rows=lambda version: pa.table(deltalake.DeltaTable(path, version=version).scan()).to_pylist(),  # type: ignore[no-any-return]
        package="deltalake",
        gone="cannot be opened at version 77",
    )


def iceberg_case(tmp_path: Path) -> LakeCase:
    catalog = catalog_at(tmp_path)
    types = pytest.importorskip("pyiceberg.types")

    first = _rows(0, pa.int32()).rename_columns(["number", "site", "day"])
    table = catalog.create_table("db.clicks", first.schema)
    with table.update_spec() as spec:
        spec.add_identity("site")
    table.append(first)
    table.append(_rows(16, pa.int32()).rename_columns(first.column_names))
    table.delete("number in (0, 5, 10, 15, 20, 25, 30)")
    table.overwrite(table.scan().to_arrow())
    with table.update_schema() as schema:
        schema.rename_column("number", "id").update_column("number", types.LongType())
        schema.add_column("price", types.DoubleType())
        schema.add_column("tags", types.ListType(100, types.LongType(), element_required=False))
    more = _rows(32, pa.int64()).append_column("price", pa.array([1.5] * 16))
    table.append(more.append_column("tags", pa.array([[1, 2]] * 16)))
    files = [task.file for task in table.scan().plan_files()]
    commit_files(catalog, "db.clicks", [position_file(table, files[0], [1]), vector_file(table, files[-1], [2])])
    table = table.refresh()
    return LakeCase(
        uri=table.metadata_location,
        folder=tmp_path / "my lake/db/clicks",
        snapshot="iceberg",
        # An overwrite is two snapshots, the first of which has no row.
        versions=[one.snapshot_id for one in table.snapshots() if one.summary["total-records"] != "0"],
        rows=lambda version: table.scan(snapshot_id=version).to_arrow().to_pylist(),  # type: ignore[no-any-return]
        package="pyiceberg",
        gone="has no snapshot 77: it never had, or it was expired",
    )


CASES = {"delta": delta_case, "iceberg": iceberg_case}


@pytest.fixture(params=CASES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeCase:
    """A table of each format."""
    return CASES[request.param](tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> LakeCase:
    return delta_case(tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> LakeCase:
    return iceberg_case(tmp_path)


@pytest.fixture(autouse=True)
def no_pool_of_pyiceberg() -> Iterator[None]:
    """End the threads that pyiceberg keeps for the whole process."""
    yield
    pools = sys.modules.get("pyiceberg.utils.concurrent")
    if pools is not None and pools.ExecutorFactory._instance is not None:
        pools.ExecutorFactory._instance.shutdown()
        pools.ExecutorFactory._instance = None
