"""Paths into nested columns: fields of structs, of lists of structs, keys and values of maps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet.column_paths import read_paths, schema_with_paths
from forebay.data.parquet.decoded_table import with_paths
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import MissingColumn, WrongType

USER = pa.struct([("age", pa.int32()), ("home", pa.struct([("zip", pa.string()), ("m2", pa.float64())]))])
ITEM = pa.struct([("price", pa.float32()), ("tags", pa.list_(pa.string()))])
ROWS = [
    {
        "user": {"age": 3, "home": {"zip": "a", "m2": 1.5}},
        "items": [{"price": 1.0, "tags": ["x"]}, None],
        "m": [("k", 1)],
    },
    {"user": None, "items": None, "m": None},
    {"user": {"age": None, "home": None}, "items": [], "m": []},
    {
        "user": {"age": 7, "home": {"zip": None, "m2": 2.5}},
        "items": [{"price": None, "tags": None}],
        "m": [("a", None)],
    },
]
TABLE = pa.table(
    {
        "user": pa.array([row["user"] for row in ROWS], USER),
        "items": pa.array([row["items"] for row in ROWS], pa.list_(ITEM)),
        "m": pa.array([row["m"] for row in ROWS], pa.map_(pa.string(), pa.int64())),
        "user.literal": [1, 2, 3, 4],
    }
)
EXPECTED = {
    "user.age": [3, None, None, 7],
    "user.home.zip": ["a", None, None, None],
    "items.price": [[1.0, None], None, [], [None]],
    "items.tags": [[["x"], None], None, [], [None]],
    "m.keys": [["k"], None, [], ["a"]],
    "m.values": [[1], None, [], [None]],
    "user.literal": [1, 2, 3, 4],
}


@pytest.mark.parametrize("path", EXPECTED)
@pytest.mark.parametrize("cuts", [(), (1,), (1, 3)], ids=str)
def test_a_path_gives_what_python_gives(path: str, cuts: tuple[int, ...]) -> None:
    edges = [0, *cuts, 4]
    table = pa.concat_tables([TABLE.slice(start, stop - start) for start, stop in itertools.pairwise(edges)])
    found = with_paths(table, [path])
    assert found[path].to_pylist() == EXPECTED[path]
    types = schema_with_paths(dict(zip(TABLE.schema.names, TABLE.schema.types, strict=True)), [path])
    assert types[path] == found[path].type
    assert with_paths(TABLE.schema.empty_table(), [path])[path].type == types[path]


def test_large_lists_and_fields_of_fields() -> None:
    inner = pa.array([[{"u": {"v": 1}}], None], pa.large_list(pa.struct([("u", pa.struct([("v", pa.int8())]))])))
    assert with_paths(pa.table({"c": inner}), ["c.u.v"])["c.u.v"].to_pylist() == [[1], None]


def test_of_structs_only_the_fields_in_use_are_read() -> None:
    schema = dict(zip(TABLE.schema.names, TABLE.schema.types, strict=True))
    paths = ["user.home.zip", "user.age", "items.price", "items.tags", "m.keys", "user.literal", "absent.x"]
    assert read_paths(paths, schema) == ("user.home.zip", "user.age", "items", "m", "user.literal", "absent.x")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("user.agee", r"'agee' is not in struct<age: int32.*It has age, home"),
        ("user.age.x", r"'x' is not in int32\. Only structs, lists of structs and maps have paths"),
        ("m.k", r"'k' is not in map<string, int64>\. It has keys, values"),
        ("items.cost", r"'cost' is not in list<item: struct.*It has price, tags"),
    ],
)
def test_a_step_that_is_not_there(path: str, text: str) -> None:
    with pytest.raises(MissingColumn, match=text):
        fb.Transform(x=fb.Dense(path)).apply(TABLE)


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        (fb.Dense("user"), r"Name a field of it: user\.age"),
        (fb.Ragged("items", max_len=2), r"Name a field of it: items\.price"),
        (fb.Categorical("m"), r"lists of keys and of values, for Ragged: m\.keys, m\.values"),
    ],
)
def test_whole_structs_and_maps_are_refused_with_the_path(feature: Any, text: str) -> None:
    with pytest.raises(WrongType, match=text):
        fb.Transform(x=feature).apply(TABLE)


def test_a_loader_reads_the_pages_of_the_fields_in_use(tmp_path: Path, parquet_folder: Callable[..., Path]) -> None:
    rows = 2000
    noise = np.random.default_rng(0).random(rows)
    users = [
        {"age": number, "home": {"zip": str(number % 7), "m2": each}} for number, each in enumerate(noise.tolist())
    ]
    pq.write_table(pa.table({"user": pa.array(users, USER), "y": range(rows)}), tmp_path / "a.parquet")
    manifest = fb.scan(tmp_path / "a.parquet")
    transform = fb.Transform(age=fb.Label("user.age"), zip=fb.Categorical("user.home.zip", buckets=9), y=fb.Label("y"))
    with fb.Loader(fb.build_plan(manifest), transform, global_batch=500) as loader:
        batches = list(loader)
        read = loader.counters["source_bytes"]
    assert all(batch["age"].tolist() == batch["y"].tolist() for batch in batches)
    assert sum(len(batch["y"]) for batch in batches) == rows
    assert read < manifest.source_bytes.sum() - noise.nbytes / 2
    with pytest.raises(MissingColumn, match="no column 'nobody.x'"):
        RowGroupReader(manifest).read(0, ["nobody.x"])
    assert fb.Vocabulary("user.home.zip").fit(manifest)["user.home.zip"][0] == "0"


class CountedNames:
    """Table that counts how often it is asked for the names of its columns."""

    def __init__(self, table: pa.Table) -> None:
        self._table, self.num_asked = table, 0

    @property
    def column_names(self) -> list[str]:
        self.num_asked += 1
        return self._table.column_names


def test_a_table_without_paths_is_asked_once_for_its_names() -> None:
    """Arrow makes their list anew each time: for 100 columns, once per column took 4 ms a row group."""
    table = CountedNames(pa.table({f"x{i}": [1.0] for i in range(100)}))
    assert with_paths(table, [f"x{i}" for i in range(100)]) is table
    assert table.num_asked == 1
