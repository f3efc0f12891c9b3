"""Footers whose counts or statistics contradict themselves: every row is read, or the file is refused by its name."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fuzz.mutants import thrift

from forebay.data.parquet import page_kernels
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.scan import scan
from forebay.errors import CorruptFile, NoFiles

_VALUES, _STATISTICS = 5, 12
_MAX, _MIN, _NULLS, _MAX_VALUE, _MIN_VALUE = 1, 2, 3, 5, 6
Edit = Callable[[thrift.Struct], None]


def _write(path: Path, table: pa.Table, edit: Edit, **options: object) -> Path:
    """Write a table, and change its footer."""
    pq.write_table(table, path, **{"row_group_size": 4, **options})
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer, _ = thrift.read_struct(whole, start)
    edit(footer)
    changed = thrift.write(footer)
    path.write_bytes(whole[:start] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    return path


def _table() -> pa.Table:
    columns = {
        "id": range(8),
        "x": [0.5, None, 1.5, 2.5, 3.5, 4.5, None, 6.5],
        "text": [None, *"abcdefg"],
        "tags": [[1, 2], None, [], [3, None], [4], [5, 6, 7], [8], [9]],
        "both": [{"a": number, "b": [str(number)] * (number % 3)} if number % 4 else None for number in range(8)],
        "pairs": pa.array([[("k", number)] if number % 3 else None for number in range(8)], pa.map_("string", "int64")),
        "fixed": pa.array([[number, number] if number % 4 else None for number in range(8)], pa.list_(pa.int32(), 2)),
    }
    return pa.table(columns)


def _rows(value: int) -> Edit:
    return lambda footer: footer.set(3, value)


def _group(field: int, change: Callable[[int], int]) -> Edit:
    def edit(footer: thrift.Struct) -> None:
        group = footer.get(4).values[1]
        group.set(field, change(group.get(field)))

    return edit


def _chunk(column: int, field: int, change: Callable[[int], int]) -> Edit:
    def edit(footer: thrift.Struct) -> None:
        facts = footer.get(4).values[1].get(1).values[column].get(3)
        facts.set(field, change(facts.get(field)))

    return edit


def _swapped(footer: thrift.Struct) -> None:
    """Swap two columns of int64: `id` and `both.a`."""
    chunks = footer.get(4).values[1].get(1).values
    chunks[0], chunks[4] = chunks[4], chunks[0]


def _everywhere(change: int) -> Edit:
    """Add to the counts of the second row group, of its columns and of the file, which then agree.

    The pages have the values that were written.
    """

    def edit(footer: thrift.Struct) -> None:
        group = footer.get(4).values[1]
        for counted, field in [(footer, 3), (group, 3), *((each.get(3), 5) for each in group.get(1).values)]:
            counted.set(field, counted.get(field) + change)

    return edit


COUNTS: dict[str, Edit] = {
    "one row less everywhere": _everywhere(-1),
    "one row more everywhere": _everywhere(1),
    "no total": _rows(0),
    **{f"total of {rows}": _rows(rows) for rows in (7, 9, -8, 1 << 40, -(1 << 63))},
    **{f"row group of {rows}": _group(3, lambda _, rows=rows: rows) for rows in (0, 3, 5, -4, 1 << 31)},
    "row group and total of 1 more": lambda footer: (_rows(9)(footer), _group(3, lambda rows: rows + 1)(footer))[1],
    "row group and total of 1 less": lambda footer: (_rows(7)(footer), _group(3, lambda rows: rows - 1)(footer))[1],
    **{
        f"{name} of {text} values": _chunk(column, _VALUES, change)
        for column, name in enumerate(("id", "x", "text", "tags", "both.a", "both.b", "key", "value", "fixed"))
        for text, change in {
            "no": lambda _: 0,
            "fewer": lambda count: count - 1,
            "more": lambda count: count + 1,
            "negative": lambda count: -count,
            "very many": lambda _: 1 << 40,
        }.items()
    },
    "columns that changed places": lambda footer: footer.get(4).values[1].get(1).values.reverse(),
    "columns of one type that changed places": _swapped,
    "a row group left out": lambda footer: footer.get(4).values.pop() and None,
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_footer_that_contradicts_itself_loses_no_row(name: str, tmp_path: Path) -> None:
    page_kernels.load()
    table = _table()
    path = _write(tmp_path / "a.parquet", table, COUNTS[name])
    pq.write_table(table, tmp_path / "b.parquet")
    read = _read_or_refused(tmp_path, path)
    assert read is None or read.equals(pa.concat_tables([table, table]))
    assert read is not None or name != "no total"


def _read_or_refused(data: Path, path: Path) -> pa.Table | None:
    """All rows of `data`. None if they were refused by the name of `path`."""
    try:
        reader = RowGroupReader(scan(data, footers=False))
        return pa.concat_tables([reader.read(index) for index in range(len(reader.manifest))])
    except CorruptFile as error:
        if str(path) not in str(error):
            raise
        return None


def _statistics(change: Callable[[thrift.Struct], None]) -> Edit:
    """Change the statistics of the second row group of `id`, which has 4 to 7."""

    def edit(footer: thrift.Struct) -> None:
        change(footer.get(4).values[1].get(1).values[0].get(3).get(_STATISTICS))

    return edit


def _bounds(low: bytes, high: bytes) -> Edit:
    def change(found: thrift.Struct) -> None:
        for field, value in ((_MIN, low), (_MIN_VALUE, low), (_MAX, high), (_MAX_VALUE, high)):
            found.set(field, value)

    return _statistics(change)


_INT, _FLOAT = struct.Struct("<q").pack, struct.Struct("<d").pack
STATISTICS: dict[str, tuple[type, Edit]] = {
    "minimum above maximum": (int, _bounds(_INT(9), _INT(2))),
    "all values null, and bounds": (int, _statistics(lambda found: found.set(_NULLS, 4))),
    "more nulls than rows": (int, _statistics(lambda found: found.set(_NULLS, 5))),
    "nulls below 0": (int, _statistics(lambda found: found.set(_NULLS, -1))),
    "NaN as both": (float, _bounds(_FLOAT(math.nan), _FLOAT(math.nan))),
    "NaN as minimum": (float, _bounds(_FLOAT(math.nan), _FLOAT(-1.0))),
    "NaN as maximum": (float, _bounds(_FLOAT(100.0), _FLOAT(math.nan))),
    "infinite, turned around": (float, _bounds(_FLOAT(math.inf), _FLOAT(-math.inf))),
}


@pytest.mark.parametrize("where", ["id >= 5", "id == 6", "id < 5", "id is None", "id is not None", "id in (2, 7)"])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_that_contradict_themselves_prune_no_row(name: str, where: str, tmp_path: Path) -> None:
    kind, edit = STATISTICS[name]
    table = pa.table({"id": pa.array(map(kind, range(8)))})
    expected = [value for value in range(8) if eval(where, {"id": value})]
    path = _write(tmp_path / "a.parquet", table, edit)
    if not expected:
        with pytest.raises(NoFiles):
            scan(path, where=where, footers=False)
        return
    reader = RowGroupReader(scan(path, where=where, footers=False))
    groups = range(len(reader.manifest))
    assert [int(each) for index in groups for each in reader.read(index)["id"].to_pylist()] == expected


_LISTS: dict[str, tuple[Callable[[int], Any], Callable[[int], bytes], int]] = {
    "numbers": (int, _INT, 3),
    "texts": (str, lambda number: len(str(number)).to_bytes(4, "little") + str(number).encode(), 3),
    "structs": (lambda number: {"a": number}, _INT, 4),
}
"""Items of a list of 40, bytes of a value, and level of a value."""


@pytest.mark.parametrize("kind", _LISTS)
@pytest.mark.parametrize("cuts", [[20, 20], [7, 7, 30], [20]], ids=str)
def test_a_list_that_goes_on_behind_an_empty_page_is_whole_or_refused(
    kind: str, cuts: list[int], tmp_path: Path
) -> None:
    """Arrow stops at a page without values."""
    page_kernels.load()
    item, to_bytes, level = _LISTS[kind]
    table = pa.table({"c": [[item(number) for number in range(40)]]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_dictionary=False, compression="none", write_statistics=False)
    bounds = [0, *cuts, 40]
    _rewrite_pages(path, [[to_bytes(number) for number in range(*pair)] for pair in pairwise(bounds)], level)
    read = _read_or_refused(path, path)
    assert read is None or read.equals(table)
    assert read is not None or len(cuts) > 1, "the pages are written rightly"


def _rewrite_pages(path: Path, pages: list[list[bytes]], level: int) -> None:
    """Write the only list of the only column chunk as these pages."""
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer, _ = thrift.read_struct(whole, start)
    facts = footer.get(4).values[0].get(1).values[0].get(3)
    header, _ = thrift.read_struct(whole, facts.get(9))
    content, is_first = b"", True
    for values in pages:
        begins = bytes([1 << 1, 0]) if is_first else b""
        goes_on = bytes([len(values) - is_first << 1, 1]) if values else b""
        levels = [begins + goes_on, bytes([len(values) << 1, level]) if values else b""]
        page = b"".join(len(each).to_bytes(4, "little") + each for each in levels) + b"".join(values)
        for field, value in ((2, len(page)), (3, len(page))):
            header.set(field, value)
        header.get(5).set(1, len(values))
        content, is_first = content + thrift.write(header) + page, False
    facts.set(6, len(content))
    facts.set(7, len(content))
    changed = thrift.write(footer)
    path.write_bytes(whole[:4] + content + changed + len(changed).to_bytes(4, "little") + b"PAR1")


def test_whole_files_pass(tmp_path: Path) -> None:
    """All kinds of nested columns, with nulls and empty lists at each level."""
    rng = np.random.default_rng(0)
    table = pa.concat_tables([_table()] * 20).take(rng.permutation(160))
    for number, options in enumerate(({}, {"data_page_version": "2.0"}, {"data_page_size": 16, "compression": "zstd"})):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=50, **options)
        reader = RowGroupReader(scan(path, footers=False))
        assert pa.concat_tables([reader.read(index) for index in range(4)]).equals(table)
