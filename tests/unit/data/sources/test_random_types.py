"""Folders of two files with random nested types, and the hints of two writers: the rows are those of Arrow."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader

Draw = random.Random
Kind = tuple[Callable[[], pa.DataType], Callable[[], Any]]
"""Makes a type of one family, and a value that each of the family holds."""

TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view, lambda item: pa.list_(item, 2)]


def _flat(draw: Draw) -> Kind:
    families: list[tuple[list[pa.DataType], Callable[[], Any]]] = [
        (TEXTS, lambda: draw.choice(["", "é", "a text of more than twelve bytes"])),
        ([pa.binary(), pa.large_binary(), pa.binary_view()], lambda: draw.randbytes(draw.randrange(20))),
        ([pa.int8(), pa.int16(), pa.int64(), pa.int32()], lambda: draw.randrange(-128, 128)),
        ([pa.uint8(), pa.uint32(), pa.int64()], lambda: draw.randrange(128)),
        ([pa.float16(), pa.float32(), pa.float64()], lambda: draw.choice([0.5, -0.0, 2048.0])),
        ([pa.decimal128(9, 2), pa.decimal64(12, 2), pa.decimal256(50, 2)], lambda: Decimal(draw.randrange(999)) / 4),
        ([pa.bool_()], lambda: draw.random() < 0.5),
    ]
    types, value = draw.choice(families)
    return lambda: draw.choice(types), value


def _kind(draw: Draw, depth: int = 0) -> Kind:
    shape = draw.choice(["flat", "list", "struct", "map"]) if depth < 3 else "flat"
    if shape == "flat":
        return _flat(draw)
    if shape == "struct":
        parts = {name: _kind(draw, depth + 1) for name in "abc"[: draw.randrange(1, 4)]}
        return (
            lambda: pa.struct([(name, parts[name][0]()) for name in draw.sample([*parts], len(parts))]),
            lambda: {name: _or_null(draw, value) for name, (_, value) in parts.items()},
        )
    kind, value = _kind(draw, depth + 1)
    if shape == "map":
        pairs = lambda: [(f"k{number}", _or_null(draw, value)) for number in range(draw.randrange(3))]  # noqa: E731
        return lambda: pa.map_(draw.choice(TEXTS), kind()), pairs
    return (
        lambda: draw.choice(LISTS)(pa.field(draw.choice(["item", "element"]), kind())),
        lambda: [_or_null(draw, value) for _ in range(2)],
    )


def _or_null(draw: Draw, value: Callable[[], Any]) -> Any:
    return None if draw.random() < 0.2 else value()


def _seeds(most: int, few: int) -> list[Any]:
    return [pytest.param(seed, marks=pytest.mark.variation) if seed >= few else seed for seed in range(most)]


@pytest.mark.parametrize("seed", _seeds(300, 12))
def test_rows_and_types_do_not_depend_on_which_file_comes_first(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    kind, value = _kind(draw)
    files = []
    for number in range(2):
        array = pa.array([_or_null(draw, value) for _ in range(6)], kind())
        path = tmp_path / f"{number}.parquet"
        hints: dict[str, bool] = {"use_compliant_nested_type": draw.random() < 0.5, "store_schema": draw.random() < 0.8}
        try:
            pq.write_table(pa.table({"x": array, "y": range(6)}), path, **hints)
        except pa.ArrowNotImplementedError:
            pytest.skip("Arrow 26 writes no fixed-size lists of views")
        files.append((path, pq.ParquetFile(path).read()["x"].to_pylist()))
    fields = []
    for order in (files, files[::-1]):
        folder = tmp_path / f"from {order[0][0].stem}"
        folder.mkdir()
        for name, (path, _) in zip("ab", order, strict=True):
            (folder / f"{name}.parquet").write_bytes(path.read_bytes())
        expected = [row for _, rows in order for row in rows]
        assert _read(fb.scan(folder, footers=False)) == expected
        kept = [row for number, row in enumerate(expected) if row is not None and number % 6 != 2]
        found = fb.scan(folder, footers=False, where="x is not None and y != 2 or y == 0")
        assert [row for row in _read(found) if row is not None] == kept
        fields.append(found.fields)
    assert fields[0] == fields[1]


def _read(manifest: fb.Manifest) -> list[Any]:
    reader = RowGroupReader(manifest)
    tables = [reader.read(index) for index in range(len(manifest))]
    for table in tables:
        table.validate(full=True)
    assert len({table.schema.field("x").type for table in tables}) == 1
    return [row for table in tables for row in table["x"].to_pylist()]
