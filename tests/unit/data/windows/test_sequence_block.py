"""Blocks of sequences: sorted steps, runs and summaries, equal for both layouts, and errors that name both rows."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import forebay as fb
from forebay.data.cache.block_file import map_block, write_block
from forebay.data.transform.block import Block
from forebay.data.transform.features.groups import Feature
from forebay.data.windows.sequence_block import Runs, SequenceTransform
from forebay.data.windows.statistics import COUNT, INFINITE, MAX, MIN, NULLS, SQUARES, SUM, summarize
from forebay.data.windows.steps import StepColumns
from forebay.errors import BadSeries, MissingColumn, WrongType

KEY = "cd" * 20


def transform_of(
    entity: str | None = "meter",
    time: str | None = "ts",
    values: dict[str, tuple[str, ...]] | None = None,
    static: dict[str, Feature] | None = None,
    is_list: bool = False,
) -> SequenceTransform:
    values = values or {"float32": ("load", "temp")}
    return SequenceTransform(StepColumns(entity=entity, time=time, values=values, static=static or {}, is_list=is_list))


def frame_of(num_rows: int, entity: str = "text", seed: int = 0) -> pd.DataFrame:
    """Steps of some entities in random order, with nulls."""
    rng = np.random.default_rng(seed)
    names = rng.integers(0, 5, num_rows)
    return pd.DataFrame(
        {
            "meter": [f"mäter{name}" for name in names] if entity == "text" else names - 2,
            "ts": rng.permutation(num_rows) - 3,
            "load": rng.normal(size=num_rows).astype(np.float32),
            "temp": np.where(rng.random(num_rows) < 0.2, np.nan, rng.normal(size=num_rows)).astype(np.float32),
            "region": names // 2,
        }
    )


@pytest.mark.parametrize("entity", ["text", "number"])
@pytest.mark.parametrize("seed", range(5))
def test_steps_and_runs_equal_pandas(entity: str, seed: int) -> None:
    frame = frame_of(97, entity, seed)
    static: dict[str, Feature] = {"static": fb.Dense(["region"], dtype="int64")}
    block = transform_of(static=static).apply(pa.Table.from_pandas(frame))
    runs = Runs.of(block)
    expected = frame.sort_values(["meter", "ts"])
    assert block.rows == 97
    assert block.arrays["@values.float32"].tobytes() == expected[["load", "temp"]].to_numpy().tobytes()
    assert block.arrays["@time"].tolist() == expected.ts.tolist()
    groups = expected.groupby("meter")
    assert runs.entities.to_pylist() == list(groups.groups)
    assert np.diff(runs.ends, prepend=0).tolist() == groups.size().tolist()
    assert runs.times.tolist() == list(map(list, zip(groups.ts.min(), groups.ts.max(), strict=True)))
    assert block.arrays["@static.static"][:, 0].tolist() == groups.region.first().tolist()


def test_lists_and_rows_make_equal_arrays() -> None:
    frame = frame_of(60)
    grouped = frame.groupby("meter")[["ts", "load", "temp"]].agg(list).reset_index().sample(frac=1, random_state=1)
    rows = transform_of().apply(pa.Table.from_pandas(frame))
    lists = transform_of(is_list=True).apply(pa.Table.from_pandas(grouped))
    assert lists.rows == len(grouped)
    assert list(lists.arrays) == list(rows.arrays)
    for name, array in rows.arrays.items():
        assert lists.arrays[name].tobytes() == array.tobytes(), name


def test_chunks_and_dictionaries_change_nothing() -> None:
    table = pa.Table.from_pandas(frame_of(50))
    chunked = pa.concat_tables([table.slice(0, 7), table.slice(7)])
    column = chunked["meter"].dictionary_encode()
    encoded = chunked.set_column(0, "meter", column)
    plain, other = transform_of().apply(table), transform_of().apply(encoded)
    assert {name: array.tobytes() for name, array in plain.arrays.items()} == {
        name: array.tobytes() for name, array in other.arrays.items()
    }


def test_a_block_file_keeps_it_to_the_bit(tmp_path: Path) -> None:
    block = transform_of().apply(pa.Table.from_pandas(frame_of(80)))
    with (tmp_path / "block").open("wb") as file:
        write_block(file, block, KEY, "meters-1")
    mapped = map_block(tmp_path / "block", KEY, verify=True)
    assert mapped.schema == block.schema
    assert all(mapped.arrays[name].tobytes() == array.tobytes() for name, array in block.arrays.items())
    assert Runs.of(mapped).entities.equals(Runs.of(block).entities)


def test_without_entity_and_time_the_steps_are_the_rows() -> None:
    tokens = np.arange(30, dtype=np.uint16)[::-1].copy()
    block = transform_of(None, None, {"uint16": ("token",)}).apply(pa.table({"token": tokens}))
    assert block.arrays["@values.uint16"][:, 0].tolist() == tokens.tolist()
    assert "@time" not in block.arrays
    assert (Runs.of(block).ends.tolist(), Runs.of(block).entities.to_pylist()) == ([30], [0])


def test_empty_lists_make_no_run() -> None:
    lists = pa.array([[], [1.0, 2.0], None], pa.list_(pa.float32()))
    table = pa.table({"meter": ["a", "b", "c"], "load": lists})
    block = transform_of(time=None, values={"float32": ("load",)}, is_list=True).apply(table)
    assert (Runs.of(block).entities.to_pylist(), Runs.of(block).ends.tolist()) == (["b"], [2])
    nothing = transform_of(time=None, values={"float32": ("load",)}, is_list=True).apply(table.slice(0, 1))
    assert len(Runs.of(nothing)) == 0 and nothing.arrays["@values.float32"].shape == (0, 1)


def test_nanoseconds_and_zones_stay_exact() -> None:
    times = pa.array([1_600_000_000_000_000_001, 1_600_000_000_000_000_000], pa.timestamp("ns", "Europe/Berlin"))
    table = pa.table({"meter": [1, 1], "ts": times, "load": [2.0, 1.0]})
    block = transform_of(values={"float32": ("load",)}).apply(table)
    assert block.arrays["@time"].tolist() == [1_600_000_000_000_000_000, 1_600_000_000_000_000_001]
    assert block.arrays["@values.float32"][:, 0].tolist() == [1.0, 2.0]


def test_a_repeated_step_names_both_rows() -> None:
    table = pa.table({"meter": ["a", "b", "a", "a"], "ts": [2, 1, 1, 2], "load": [0.0] * 4, "temp": [0.0] * 4})
    with pytest.raises(BadSeries, match="Rows 0 and 3 are both step 2 .ts. of entity 'a'") as raised:
        transform_of().apply(table)
    assert raised.value.rows == (0, 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"meter": ["a", None]}, "Row 1 has a null in the entity column 'meter'"),
        ({"ts": [None, 1]}, "Row 0 has a null in the time column 'ts'"),
        ({"ts": pa.array([1, 2**63], pa.uint64())}, "does not fit int64"),
    ],
)
def test_rows_that_belong_nowhere_are_refused(changed: dict[str, object], message: str) -> None:
    table = pa.table({"meter": ["a", "b"], "ts": [1, 2], "load": [0.0, 1.0], "temp": [0.0, 1.0]} | changed)
    with pytest.raises(BadSeries, match=message):
        transform_of().apply(table)


def test_an_integer_dtype_takes_no_null() -> None:
    with pytest.raises(BadSeries, match="1 nulls, which int64 cannot hold. Give a float dtype"):
        transform_of(None, None, {"int64": ("token",)}).apply(pa.table({"token": [1, None]}))


def test_lists_of_a_row_have_equal_lengths() -> None:
    table = pa.table({"meter": [1], "load": [[1.0, 2.0]], "temp": [[1.0]]})
    with pytest.raises(BadSeries, match="Row 0 has 2 steps in column 'load' and 1 in 'temp'"):
        transform_of(time=None, is_list=True).apply(table)


def test_a_static_value_may_be_nan_in_all_steps() -> None:
    nan = float("nan")
    steps = {"meter": ["a", "a", "b"], "ts": [1, 2, 1], "load": [0.0] * 3, "temp": [0.0] * 3}
    table = pa.table(steps | {"x": [nan, nan, 2.0]})
    static = {"static": fb.Dense(["x"])}
    found = transform_of(static=static).apply(table).arrays["@static.static"]
    np.testing.assert_array_equal(found, [[nan], [2.0]])
    with pytest.raises(BadSeries, match="changes within entity 'a'"):
        transform_of(static=static).apply(pa.table(steps | {"x": [nan, 1.0, 2.0]}))


def test_a_static_value_that_changes_is_refused() -> None:
    table = pa.table({"meter": ["a", "b", "a"], "ts": [1, 1, 2], "load": [0.0] * 3, "temp": [0.0] * 3, "x": [1, 2, 3]})
    with pytest.raises(BadSeries, match="changes within entity 'a', between rows 0 and 2"):
        transform_of(static={"static": fb.Dense(["x"])}).apply(table)


@pytest.mark.parametrize(
    ("types", "error"),
    [
        ({"meter": pa.float64()}, WrongType),
        ({"ts": pa.float64()}, WrongType),
        ({"ts": pa.list_(pa.int64())}, WrongType),
        ({"load": pa.string()}, WrongType),
        ({"load": pa.list_(pa.float32())}, WrongType),
        ({"other": pa.float32()}, MissingColumn),
    ],
)
def test_columns_are_checked_before_data_is_read(types: dict[str, pa.DataType], error: type[Exception]) -> None:
    schema = {"meter": pa.string(), "ts": pa.int64(), "load": pa.float32(), "temp": pa.float32()}
    if "other" in types:
        del schema["load"]
    with pytest.raises(error):
        transform_of().step_columns.check(schema | types)


def test_fingerprints_cover_the_columns_and_survive_pickling() -> None:
    transforms = [
        transform_of(),
        transform_of(entity=None),
        transform_of(time=None),
        transform_of(values={"float32": ("temp", "load")}),
        transform_of(values={"float64": ("load", "temp")}),
        transform_of(static={"static": fb.Categorical(["region"])}),
        transform_of(is_list=True),
    ]
    assert len({transform.fingerprint for transform in transforms}) == len(transforms)
    for transform in transforms:
        again = pickle.loads(pickle.dumps(transform))
        assert (again.fingerprint, again.columns) == (transform.fingerprint, transform.columns)


def test_summaries_count_what_is_no_number() -> None:
    values = np.array([[1, np.nan, 5, 2], [3, np.nan, 5, np.inf], [np.nan, np.nan, 5, -1]], np.float32)
    plain, empty, constant, infinite = summarize(values)
    assert plain[[COUNT, NULLS, MIN, MAX, SUM, SQUARES]].tolist() == [2, 1, 1, 3, 4, 2]
    assert empty[[COUNT, NULLS, MIN, MAX, SUM, SQUARES]].tolist() == [0, 3, np.inf, -np.inf, 0, 0]
    assert constant[[COUNT, MIN, MAX, SUM, SQUARES]].tolist() == [3, 5, 5, 15, 0]
    assert infinite[[COUNT, INFINITE, MIN, MAX, SUM, SQUARES]].tolist() == [3, 1, -1, np.inf, 1, 4.5]


def test_names_of_attached_arrays_are_reserved() -> None:
    with pytest.raises(fb.errors.TransformFailed, match="reserved"):
        Block.of({"@time": np.zeros(3)})


def test_static_lists_must_be_padded() -> None:
    with pytest.raises(fb.errors.InvalidOption, match="'tags' of Sequences is Ragged"):
        transform_of(static={"tags": fb.Ragged("tags", padded=False)})
