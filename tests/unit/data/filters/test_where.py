"""Row filters: their grammar, their nulls, and what they keep."""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.saved import load_manifest, save_manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.scan import scan
from forebay.errors import InvalidOption, MissingColumn, NoFiles

Write = Callable[..., Path]
field = pc.field
day = datetime.date(2024, 1, 11)


@pytest.fixture
def table(write_table: Write) -> Path:
    columns = {
        "x": [None if number % 5 == 0 else number % 100 for number in range(1000)],
        "label": pa.array([None if number % 7 == 0 else number % 2 for number in range(1000)], pa.int8()),
        "day": [datetime.date(2024, 1, 1) + datetime.timedelta(days=number // 50) for number in range(1000)],
        "at": pa.array([number * 1_000_000 for number in range(1000)], pa.timestamp("us", "UTC")),
        "user id": pa.array([str(number % 3) for number in range(1000)]).dictionary_encode(),
        "price": [number / 8 for number in range(1000)],
        "is_new": [number % 2 == 0 for number in range(1000)],
        "row": range(1000),
    }
    return write_table("a.parquet", pa.table(columns), rows_per_group=100)


def rows_of(manifest: Manifest) -> list[int]:
    reader = RowGroupReader(manifest)
    return [row for index in range(len(manifest)) for row in reader.read(index, ["row"])["row"].to_pylist()]


@pytest.mark.parametrize(
    ("where", "expression"),
    [
        ("label is not None", field("label").is_valid()),
        ("label is None and x is not None", field("label").is_null() & field("x").is_valid()),
        ("1 < x <= 30", (field("x") > 1) & (field("x") <= 30)),
        ("x != 3", field("x") != 3),
        ("not x == 3", field("x") != 3),
        ("x in (3, 4)", field("x").isin([3, 4])),
        ("x not in [3, 4]", field("x").is_valid() & ~field("x").isin([3, 4])),
        ("day >= '2024-01-11' or label == 1", (field("day") >= day) | (field("label") == 1)),
        ("day == '2024-01-11'", field("day") == day),
        ("at < '1970-01-01T00:05:00+00:00'", field("row") < 300),
        ('col("user id") == "2"', field("user id").cast(pa.string()) == "2"),
        ("price >= 100 and price < 110.5", (field("price") >= 100) & (field("price") < 110.5)),
        ("is_new == True", field("is_new")),
        ("x > -1", field("x") >= 0),
    ],
)
def test_it_keeps_the_rows_that_arrow_keeps(table: Path, where: str, expression: pc.Expression) -> None:
    manifest = scan(table, columns=["row"], where=where)
    expected = pq.read_table(table).filter(expression)["row"].to_pylist()
    assert rows_of(manifest) == expected
    assert manifest.columns == ("row",)
    assert manifest.kept is not None
    assert (manifest.num_rows, manifest.kept.filtered_rows) == (len(expected), 1000 - len(expected))


@pytest.mark.parametrize(
    "where",
    [
        *("", "x <", "x", "x == x", "1 == 1", "x + 1 == 2", "f(x) == 1", "x is 3", "x in 3", "x in ()", "x == None"),
        *(
            "x in (1, None)",
            "3 in x",
            "None is x",
            "x == [1]",
            "x == 1j",
            "x == b'a'",
            "x = 3",
            "x" * 20_000,
        ),
        *(
            "not " * 60 + "x == 1",
            "(" * 1000 + "x" + ")" * 1000,
            "x == 'a'",
            "is_new == 1",
            "price == '3'",
            "row == True",
        ),
        *("col('user id') == 3", "day == 'monday'", "day == 3", "at < '2024-01-01'", "x == 1\ny == 2", 5),
    ],
)
def test_what_is_no_filter_is_refused(table: Path, where: str) -> None:
    with pytest.raises(InvalidOption, match="where"):
        scan(table, where=where)


def test_the_equals_sign_of_sql_is_answered(table: Path) -> None:
    with pytest.raises(
        InvalidOption, match=r"cannot be read \(invalid syntax\)\. Equal values are compared with ==\. "
    ):
        scan(table, where="x = 3")


def test_a_field_named_as_a_word_of_python_is_written_with_its_struct(table: Path) -> None:
    with pytest.raises(InvalidOption, match=r" Write column 'user\.class' as col\('user\.class'\)\. "):
        scan(table, where="user.class == 1.5")


@pytest.mark.parametrize(("where", "hint"), [("class == 'if'", True), ("x > and label == 'if'", False)])
def test_a_column_named_as_a_word_of_python_is_written_col(table: Path, where: str, hint: bool) -> None:
    with pytest.raises(InvalidOption, match="cannot be read") as found:
        scan(table, where=where)
    assert (" Write column 'class' as col('class'). " in str(found.value)) == hint == ("col(" in str(found.value))


def test_a_missing_column_and_a_filter_that_leaves_nothing(table: Path) -> None:
    with pytest.raises(MissingColumn, match="Did you mean 'label'"):
        scan(table, where="labels == 1")
    with pytest.raises(NoFiles, match="keeps none of 1000 rows"):
        scan(table, where="x > 1000")
    with pytest.raises(NoFiles, match="keeps none of 1000 rows"):
        scan(table, where="x == 5 and x == 6")


def test_row_groups_without_a_match_are_not_read(table: Path, alter: Callable[..., None]) -> None:
    chunk = pq.read_metadata(table).row_group(0).column(7)
    alter(table, {chunk.data_page_offset + offset: 255 for offset in range(20)})
    assert rows_of(scan(table, where="row >= 350")) == list(range(350, 1000))


def test_the_filter_is_in_the_id_and_in_saved_manifests(table: Path, tmp_path: Path) -> None:
    whole, one, same, other = (scan(table, where=text) for text in (None, "x<3", " x  < 3", "x<4"))
    assert one.id == same.id != other.id != whole.id
    assert one.kept and one.kept.where == "x < 3"
    for name in ("a.json", "a.parquet"):
        save_manifest(one, tmp_path / name)
        again = load_manifest(tmp_path / name)
        assert (again, rows_of(again)) == (one, rows_of(one))
        assert again.kept and again.kept.filtered_rows == one.kept.filtered_rows
    text = (tmp_path / "a.json").read_text()
    for edited in (text.replace('"mask": "', '"mask": "a'), text.replace('"x < 3"', '"x < 4"')):
        (tmp_path / "b.json").write_text(edited)
        with pytest.raises(InvalidOption, match="damaged or was edited"):
            load_manifest(tmp_path / "b.json")


def test_parts_of_a_filtered_data_set(table: Path) -> None:
    manifest = scan(table, where="label is not None")
    rest, held_out = manifest.split(0.3)
    assert sorted(rows_of(rest) + rows_of(held_out)) == rows_of(manifest)
    assert rest.num_rows + held_out.num_rows == manifest.num_rows


@pytest.mark.parametrize("name", ["\u00b5", "e\u0301", "\ufb01x", "\u212b"])
def test_a_name_beyond_ascii_is_read_as_written(name: str, tmp_path: Path) -> None:
    """Python gives each of these other letters: the sign of micro becomes the Greek letter."""
    other = unicodedata.normalize("NFKC", name)
    assert other != name
    inner = pa.array([{name: 1, other: 10}, {name: 2, other: 20}])
    pq.write_table(pa.table({name: [1, 2], other: [10, 20], "s": inner}), tmp_path / "a.parquet")
    for where in (f"{name} == 1", f"s.{name} == 1", f"s . {name} == 1 and {name} < 2", f"({name} in (1, 3))"):
        found = scan(tmp_path, where=where)
        assert found.num_rows == 1
        assert scan(tmp_path, where=found.kept.where if found.kept else "").id == found.id
    assert scan(tmp_path, where=f"{other} == 20").num_rows == 1
    with pytest.raises(NoFiles):
        scan(tmp_path, where=f"{name} == 10")
