"""Row filters on fields of structs: nulls at every level, statistics of the fields, and names with dots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.saved import load_manifest, save_manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.scan import scan
from forebay.errors import CorruptFile, InvalidOption, MissingColumn, MixedSchemas, NoFiles

Write = Callable[..., Path]
HOME = pa.struct([("zip", pa.string()), ("m2", pa.float64())])
USER = pa.struct([("age", pa.int32()), ("home", HOME)])
ITEMS = pa.list_(pa.struct([("price", pa.int64())]))
AGE, ZIP = pc.field("user", "age"), pc.field("user", "home", "zip")

homes = st.none() | st.fixed_dictionaries(
    {"zip": st.none() | st.sampled_from("abc"), "m2": st.none() | st.sampled_from([0.5, 80.0, float("nan")])}
)
users = st.none() | st.fixed_dictionaries({"age": st.none() | st.integers(0, 4), "home": homes})
# Rows of equal users lie together, so that the statistics of some row groups hold nulls alone, or one value.
runs = st.lists(st.tuples(users, st.integers(1, 6)), min_size=1, max_size=8)
FILTERS: dict[str, tuple[pc.Expression, Callable[[Any, Any], bool]]] = {
    "user.age > 2": (AGE > 2, lambda age, _: age is not None and age > 2),
    "not user.age > 2": (AGE <= 2, lambda age, _: age is not None and age <= 2),
    "user.age is None": (AGE.is_null(), lambda age, _: age is None),
    "user.home.zip is not None": (ZIP.is_valid(), lambda _, zip_: zip_ is not None),
    "user.home.zip not in ('a', 'b')": (ZIP == "c", lambda _, zip_: zip_ == "c"),
    "user.age == 1 or user.home.zip == 'a'": ((AGE == 1) | (ZIP == "a"), lambda age, zip_: age == 1 or zip_ == "a"),
    "1 <= user.age < 3 and not user.home.zip == 'b'": (
        (AGE >= 1) & (AGE < 3) & (ZIP != "b"),
        lambda age, zip_: age in (1, 2) and zip_ in ("a", "c"),
    ),
}


def people(rows: list[Any]) -> pa.Table:
    return pa.table({"row": range(len(rows)), "user": pa.array(rows, USER)})


def rows_of(manifest: Manifest) -> list[int]:
    reader = RowGroupReader(manifest)
    return [row for index in range(len(manifest)) for row in reader.read(index, ["row"])["row"].to_pylist()]


def age_and_zip(user: Any) -> tuple[Any, Any]:
    return (None, None) if user is None else (user["age"], None if user["home"] is None else user["home"]["zip"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(runs=runs, where=st.sampled_from(sorted(FILTERS)), rows_per_group=st.integers(1, 7))
def test_it_keeps_the_rows_that_arrow_keeps_with_nulls_at_each_level(
    write_table: Write, runs: list[tuple[Any, int]], where: str, rows_per_group: int
) -> None:
    rows = [user for user, count in runs for _ in range(count)]
    path = write_table("a.parquet", people(rows), rows_per_group)
    expression, keeps = FILTERS[where]
    expected = [number for number, user in enumerate(rows) if keeps(*age_and_zip(user))]
    assert ds.dataset(path).to_table(filter=expression)["row"].to_pylist() == expected
    if not expected:
        with pytest.raises(NoFiles, match=f"keeps none of {len(rows)} rows"):
            scan(path, columns=["row"], where=where)
        return
    manifest = scan(path, columns=["row"], where=where)
    assert rows_of(manifest) == expected
    assert manifest.kept is not None
    assert (manifest.num_rows, manifest.kept.filtered_rows) == (len(expected), len(rows) - len(expected))


def test_only_the_compared_field_of_row_groups_that_may_match_is_read(
    write_table: Write, alter: Callable[..., None]
) -> None:
    rows = [{"age": number, "home": {"zip": "x" * 50, "m2": number / 2}} for number in range(1000)]
    path = write_table("a.parquet", people(rows), 100, use_dictionary=False)
    footer = pq.read_metadata(path)
    age_of_first, zip_of_fifth = footer.row_group(0).column(1), footer.row_group(5).column(2)
    for chunk in (age_of_first, zip_of_fifth):
        alter(path, {chunk.data_page_offset + offset: 255 for offset in range(20)})
    assert rows_of(scan(path, columns=["row"], where="user.age >= 350")) == list(range(350, 1000))
    for where in ("user.age >= 50", "user.age >= 350 and user.home.zip != 'x'"):
        with pytest.raises(CorruptFile):
            scan(path, columns=["row"], where=where)


def test_the_path_is_in_the_id_and_in_saved_manifests(write_table: Write, tmp_path: Path) -> None:
    path = write_table("a.parquet", people([{"age": number, "home": None} for number in range(10)]))
    one, same, other = (scan(path, where=text) for text in ("user.age<3", " user . age  < 3", "user.age<4"))
    assert one.id == same.id != other.id
    assert one.kept and one.kept.where == "user.age < 3"
    save_manifest(one, tmp_path / "m.json")
    assert load_manifest(tmp_path / "m.json").id == one.id


def test_a_column_with_a_dot_in_its_name_wins_over_a_path(write_table: Write) -> None:
    table = people([{"age": number, "home": None} for number in range(10)])
    path = write_table("a.parquet", table.append_column("user.age", pa.array(range(90, 100))), 2)
    for where in ("user.age == 93", "col('user.age') == 93"):
        assert rows_of(scan(path, columns=["row"], where=where)) == [3]
    with pytest.raises(NoFiles):
        scan(path, columns=["row"], where="user.age == 3")
    assert rows_of(scan(path, columns=["row"], where="user.home is None and user.age < 92")) == [0, 1]


def test_steps_that_are_no_names_of_python(write_table: Write) -> None:
    classes = pa.array(["a", "b"]).dictionary_encode()
    user = pa.StructArray.from_arrays([pa.array([1, 2]), classes], ["user id", "class"])
    path = write_table("a.parquet", pa.table({"row": [0, 1], "user": user}))
    assert rows_of(scan(path, columns=["row"], where="col('user.user id') == 2")) == [1]
    assert rows_of(scan(path, columns=["row"], where="col('user.class') == 'a'")) == [0]


def test_whole_structs_are_compared_with_null_alone(write_table: Write) -> None:
    rows = [None, {"age": 1, "home": None}, {"age": None, "home": {"zip": None, "m2": 1.0}}]
    path = write_table("a.parquet", people(rows), 1)
    assert rows_of(scan(path, columns=["row"], where="user is None")) == [0]
    assert rows_of(scan(path, columns=["row"], where="user.home is None")) == [0, 1]
    assert rows_of(scan(path, columns=["row"], where="user.home is not None")) == [2]


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ("user.agee == 3", MissingColumn, r"no 'user\.agee'.*without a field 'agee'\. Compare one of age, home\."),
        ("usr.age == 3", MissingColumn, r"no column 'usr\.age'.*Did you mean 'user'"),
        ("user.age.x == 3", MissingColumn, r"'user\.age' is int32, without a field 'x'\. Compare 'user\.age' itself"),
        ("row.x == 3", MissingColumn, r"'row' is int64, without a field 'x'"),
        ("user.home.city == 'a'", MissingColumn, r"Compare one of zip, m2"),
        ("user == 3", InvalidOption, r"is struct<.*Compare one of its fields \(user\.age, user\.home\)"),
        ("user.home > 'a'", InvalidOption, r"is struct<.*its fields \(user\.home\.zip, user\.home\.m2\)"),
        ("user.age == 'a'", InvalidOption, r"compares column 'user\.age', which is int32, with 'a'"),
        ("items.price > 3", InvalidOption, r"leads through 'items', and that is list<.*Compare a field of a struct"),
        ("deep.items.price > 3", InvalidOption, r"leads through 'deep\.items', and that is list<"),
        ("tags.keys == 'a'", InvalidOption, r"leads through 'tags', and that is map<"),
        ("f(user).age == 3", InvalidOption, r"cannot be read"),
    ],
)
def test_paths_that_lead_to_no_single_value_are_refused(
    write_table: Write, where: str, error: type[Exception], text: str
) -> None:
    table = people([{"age": 1, "home": None}])
    for name, kind in (("items", ITEMS), ("deep", pa.struct([("items", ITEMS)])), ("tags", pa.map_("string", "int8"))):
        table = table.append_column(name, pa.nulls(1, kind))
    with pytest.raises(error, match=f"(?s){text}"):
        scan(write_table("a.parquet", table), columns=["row"], where=where)


def test_files_must_agree_on_the_column_of_a_path(write_table: Write) -> None:
    one = write_table("a.parquet", people([{"age": 1, "home": None}]))
    write_table("b.parquet", {"row": [1], "user": pa.array([{"age": 1}], pa.struct([("age", pa.int64())]))})
    write_table("c.parquet", {"row": [1], "user.age": [1]})
    for other in ("b", "c"):
        with pytest.raises(MixedSchemas, match="user"):
            scan([one, one.with_name(f"{other}.parquet")], columns=["row"], where="user.age == 1")


def test_the_name_of_a_folder_wins_over_a_path_and_must_not_be_in_files_that_are_filtered(write_table: Write) -> None:
    path = write_table("user.age=7/a.parquet", people([{"age": 1, "home": None}]))
    assert rows_of(scan(path.parents[1], columns=["row"], where="user.age == 7")) == [0]
    other = write_table("more/user=7/a.parquet", people([{"age": 1, "home": None}])).parents[1]
    with pytest.raises(InvalidOption, match="has a column 'user', and so has the name of its folder"):
        scan(other, columns=["row"], where="user.age == 1")
