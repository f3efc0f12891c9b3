"""Extension types of Python code: a process that has registered them reads what all others read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.column_paths import column_at
from forebay.data.parquet.reading import RowGroupReader

NAME = "mine.tensor"


class Tensor(pa.ExtensionType):
    """As Ray Data registers one for tensors, and pandas for periods."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Tensor:
        return cls(storage_type)


@contextmanager
def registered() -> Iterator[None]:
    pa.register_extension_type(Tensor(pa.int64()))
    try:
        yield
    finally:
        pa.unregister_extension_type(NAME)


FLOATS = pa.array([1.0, None, 3.0])
LISTS = [[1.0, 2.0], None, [3.0, 4.0]]
PAIRS = pa.StructArray.from_arrays([FLOATS, pa.array(LISTS, pa.large_list(pa.float32()))], ["a", "b"])


def tensor(storage: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(Tensor(storage.type), storage)


COLUMNS = {
    "numbers": tensor(FLOATS),
    "list": tensor(pa.array(LISTS, pa.list_(pa.float64()))),
    "large list": tensor(pa.array(LISTS, pa.large_list(pa.float64()))),
    "fixed list": tensor(pa.array(LISTS, pa.list_(pa.float64(), 2))),
    "struct": tensor(PAIRS),
    "in a struct": pa.StructArray.from_arrays([tensor(FLOATS), FLOATS], ["a", "b"]),
    "in a list": pa.ListArray.from_arrays([0, 2, 2, 3], tensor(FLOATS)),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("is_compliant", [True, False], ids=["element", "item"])
def test_all_processes_read_one_type(name: str, is_compliant: bool, tmp_path: Path) -> None:
    table = pa.table({"x": COLUMNS[name], "id": [1, 2, 3]})
    with registered():
        pq.write_table(table, tmp_path / "a.parquet", use_compliant_nested_type=is_compliant)
        there = fb.scan(tmp_path, footers=False)
    here = fb.scan(tmp_path, footers=False)
    assert "tensor" not in str(here.fields)
    assert there.fields == here.fields
    assert there.id == here.id
    expected = rows_of(here)
    with registered():
        assert rows_of(pickle.loads(pickle.dumps(here))) == expected
        for where in ("id > 1", "x is not None and id > 1"):
            assert fb.scan(tmp_path, where=where).id == fb.scan(tmp_path, where=where, footers=False).id
        kept = fb.scan(tmp_path, where="x is None or id < 9", footers=False)
    assert rows_of(kept) == expected
    assert fb.scan(tmp_path, where="x is None or id < 9", footers=False).id == kept.id


def rows_of(manifest: Manifest) -> pa.Table:
    table = RowGroupReader(manifest).read(0)
    assert [str(kind) for kind in table.schema.types] == [field.type for field in manifest.fields]
    return table.replace_schema_metadata(None)


def test_fields_of_a_registered_struct(tmp_path: Path) -> None:
    paths = ["x.b", "y.a", "z.s.b"]

    def read() -> list[pa.ChunkedArray]:
        table = RowGroupReader(fb.scan(tmp_path, footers=False)).read(0, paths)
        return [column_at(table, path) for path in paths]

    with registered():
        inner = pa.StructArray.from_arrays([COLUMNS["struct"], FLOATS], ["s", "f"])
        columns = {"x": COLUMNS["struct"], "y": COLUMNS["in a struct"], "z": inner, "id": pa.array([1, 2, 3])}
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        found = read()
        assert fb.scan(tmp_path, where="x.a > 1 and y.a > 1 and z.s.a > 1", footers=False).num_rows == 1
    assert found == read()
    assert [each.to_pylist() for each in found] == [LISTS, FLOATS.to_pylist(), LISTS]
