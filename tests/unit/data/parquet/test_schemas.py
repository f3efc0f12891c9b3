"""Differences between files that still count as one schema."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.data.manifest.manifest import Field
from forebay.data.parquet.schemas import FileSchema, agree, leaves_of, missing_column
from forebay.errors import MissingColumn, MixedSchemas


def schema(uri: str, **types: str) -> FileSchema:
    return FileSchema(uri, tuple(Field(name=name, type=kind, nullable=False) for name, kind in types.items()))


def test_the_order_of_columns_does_not_matter_and_the_first_file_decides_it() -> None:
    agreed = agree([schema("a", x="float", y="int64"), schema("b", y="int64", x="float")], None)
    assert ([field.name for field in agreed.fields], agreed.promoted) == (["x", "y"], {})


def test_the_selection_decides_the_order_and_what_is_compared() -> None:
    files = [schema("a", x="float", y="int64", z="string"), schema("b", z="int8", y="int64", x="float")]
    assert [field.name for field in agree(files, ("y", "x")).fields] == ["y", "x"]


def test_a_column_is_nullable_where_one_file_says_so() -> None:
    other = FileSchema("b", (Field(name="x", type="float", nullable=True),))
    assert agree([schema("a", x="float"), other], None).fields[0].nullable
    assert not agree([schema("a", x="float")], None).fields[0].nullable


@pytest.mark.parametrize("selection", [None, ("x",)])
def test_two_types_name_both_files(selection: tuple[str, ...] | None) -> None:
    with pytest.raises(MixedSchemas, match=r"'x' is float in a, but is int64 in c\.") as caught:
        agree([schema("a", x="float"), schema("b", x="float"), schema("c", x="int64")], selection)
    assert caught.value.facts == {"column": "x", "files": ("a", "c"), "types": ("float", "int64")}


@pytest.mark.parametrize("selection", [None, ("x",)])
def test_a_column_that_some_files_lack(selection: tuple[str, ...] | None) -> None:
    with pytest.raises(MixedSchemas, match=r"'x' is float in b, but is absent in a\."):
        agree([schema("a", y="int8"), schema("b", x="float", y="int8")], selection)


def test_a_column_that_no_file_has() -> None:
    with pytest.raises(
        MissingColumn, match=r"no column 'clickd' among the 2 columns of a: x, clicked\. Did you mean 'clicked'\?"
    ):
        agree([schema("a", x="float", clicked="int8")], ("clickd",))


def test_many_columns_are_cut_short() -> None:
    error = missing_column("zzz", [f"c{number}" for number in range(100)], "a")
    assert "c19, ...." in str(error)
    assert "c20" not in str(error)
    assert error.columns == tuple(f"c{number}" for number in range(100))


def test_one_name_twice_matters_where_it_is_selected() -> None:
    twice = FileSchema("a", tuple(Field(name=name, type="int8") for name in "xyx"))
    with pytest.raises(MixedSchemas, match="two columns 'x'"):
        agree([twice], None)
    assert [field.name for field in agree([twice], ("y",)).fields] == ["y"]


def test_leaves_of_nested_and_dotted_columns() -> None:
    table = pa.table({"a": [[1]], "b": [{"c": 1, "d": "x"}], "e.f": [1], "g": [1]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    assert leaves_of(paths, ["a", "g"]) == [0, 4]
    assert leaves_of(paths, ["b"]) == [1, 2]
    assert leaves_of(paths, ["e.f"]) == [3]
    assert leaves_of(paths, []) == []
