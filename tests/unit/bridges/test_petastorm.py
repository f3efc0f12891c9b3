"""The shim does what petastorm does, or says that it does not."""

from __future__ import annotations

import gc
import inspect
import re
import weakref
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.bridges.petastorm import REFUSED, make_batch_reader
from forebay.data.loader.batch_queue import BatchQueue
from forebay.errors import ForebayError, InvalidOption, NullLabel, WrongType

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-petastorm.md"
OWN = ("batch_size", "transform", "lanes")


def varied(some: tuple[Any, ...], others: tuple[Any, ...]) -> list[Any]:
    """Cases of a parameter, the others as variations."""
    return [*some, *(pytest.param(each, marks=pytest.mark.variation) for each in others)]


def doubled(frame: Any) -> Any:
    frame["twice"] = frame["x0"] * 2
    return frame


def ids_of(reader: Any) -> list[int]:
    return [row_id for batch in reader for row_id in batch.id.tolist()]


def test_columns_of_numbers_come_as_they_are(folder: str, tmp_path: Path) -> None:
    cache = {"cache_type": "local-disk", "cache_location": str(tmp_path / "cache"), "cache_size_limit": 64 << 20}
    with make_batch_reader(folder, ["id", "x0"], num_epochs=2, workers_count=4, **cache) as reader:
        batches = list(reader)
    ids = np.concatenate([batch.id for batch in batches])
    assert batches[0]._fields == ("id", "x0") and ids.dtype == np.int64 and batches[0].x0.dtype == np.float32
    assert np.bincount(ids).tolist() == [2] * 400


def test_a_transform_spec_gets_frames(folder: str) -> None:
    spec = SimpleNamespace(func=doubled, selected_fields=["id", "twice"], removed_fields=[])
    with make_batch_reader(folder, ["id", "x0"], transform_spec=spec) as reader:
        for batch in reader:
            assert batch.twice.tolist() == [2.0 * row_id for row_id in batch.id]


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        *(({name: object()}, InvalidOption, f"{name}=.*no counterpart") for name in REFUSED),
        ({"schema_fields": ["id", "s"]}, WrongType, r"\['s'\] hold no numbers"),
        ({"schema_fields": ["id", "nothing.*"]}, InvalidOption, r"\['nothing\.\*'\] match no column"),
        ({"cache_type": "local-disk"}, InvalidOption, "its limit in bytes"),
        ({"cache_type": "s3"}, InvalidOption, "give 'null', or"),
        ({"reader_pool_type": "fibre"}, InvalidOption, "'dummy'"),
        ({"cur_shard": 0, "shard_count": 3, "batch_size": 7}, InvalidOption, "Give batch_size=12 and lanes=18"),
        ({"shard_count": 2}, InvalidOption, "give both"),
        ({"cur_shard": 0}, InvalidOption, "give both"),
        *(
            ({"cur_shard": shard, "shard_count": number}, InvalidOption, "cur_shard=|shard_count=")
            for shard, number in ((2, 2), (-1, 2), (0, 0), (0, -1), (0, 1.5), ("0", 2), (True, 2), (0.0, 2))
        ),
        *(({"num_epochs": number}, InvalidOption, "num_epochs=") for number in (0, -1, 1.5, True, "2")),
        *(({"batch_size": number}, InvalidOption, "batch_size=") for number in (0, -1, None)),
        ({"cur_shard": 0, "shard_count": 2, "batch_size": 201}, InvalidOption, "no shard would get one"),
        ({"cur_shard": 0, "shard_count": 2}, InvalidOption, "Give batch_size=200 or less"),
        ({"shuffle_row_drop_partitions": 0}, InvalidOption, "shuffle_row_drop_partitions="),
        ({"shuffle_row_groups": False, "shuffle_rows": True}, InvalidOption, "or not at all"),
        ({"shuffle_row_groups": False, "shuffle_row_drop_partitions": 2}, InvalidOption, "or not at all"),
        ({"shuffle_row_groups": False, "lanes": 4}, InvalidOption, "keeps the order of the files"),
        ({"transform": fb.Transform(id=fb.Label("id")), "transform_spec": object()}, InvalidOption, "one of them"),
    ],
)
def test_what_has_no_counterpart_is_refused(folder: str, options: dict[str, Any], kind: type, said: str) -> None:
    with pytest.raises(kind, match=said) as refused:
        make_batch_reader(folder, **({"schema_fields": ["id"]} | options))
    assert isinstance(refused.value, ForebayError)
    assert isinstance(refused.value, ValueError) or kind is WrongType


def test_unshuffled_rows_keep_the_order_of_the_files(folder: str) -> None:
    for size in (7, 64, 1000):
        with make_batch_reader(folder, ["id"], shuffle_row_groups=False, batch_size=size, num_epochs=2) as reader:
            assert ids_of(reader) == [*range(400)] * 2


@pytest.mark.parametrize("shards", varied((3,), (1, 2, 5)))
def test_shards_are_disjoint_and_equal_and_unshuffled_ones_in_order(folder: str, shards: int) -> None:
    for options in ({"shuffle_row_groups": False}, {"lanes": 30}):
        parts = []
        for shard in range(shards):
            with make_batch_reader(
                folder, ["id"], batch_size=30, cur_shard=shard, shard_count=shards, **options
            ) as reader:
                parts.append(ids_of(reader))
        assert len({len(part) for part in parts}) == 1
        seen = [row for part in parts for row in part]
        assert len(seen) == len(set(seen)) == 400 // (30 * shards) * 30 * shards
        if "lanes" not in options:
            assert all(part == sorted(part) for part in parts)


def test_the_reader_is_an_iterator(folder: str) -> None:
    reader = make_batch_reader(folder, ["id"], batch_size=150)
    assert iter(reader) is reader and reader.batched_output and not reader.last_row_consumed
    reader.reset()
    first = [next(reader), reader.next()]
    with pytest.raises(NotImplementedError, match="before the last batch"):
        reader.reset()
    rest = list(reader)
    assert sorted(ids_of([*first, *rest])) == [*range(400)]
    assert reader.last_row_consumed and list(reader) == []
    reader.reset()
    again = ids_of(reader)
    assert sorted(again) == [*range(400)] and again != ids_of([*first, *rest])
    assert reader.diagnostics["batches"] >= 6
    reader.stop()
    reader.join()
    reader.reset()
    for read in (lambda: next(reader), lambda: list(reader)):
        with pytest.raises(RuntimeError, match="was stopped"):
            read()


@pytest.mark.parametrize("num_epochs", varied((2,), (1, None)))
def test_a_state_gives_the_rest(folder: str, num_epochs: int | None) -> None:
    options: dict[str, Any] = {"batch_size": 90, "num_epochs": num_epochs}
    with make_batch_reader(folder, ["id"], **options) as reader:
        batches, states = [], [reader.state_dict()]
        for _ in range(5 * (num_epochs or 3)):
            batches.append(next(reader).id.tolist())
            states.append(reader.state_dict())
        for done in (0, 2, 5):
            reader.load_state_dict(states[done])
            assert [next(reader).id.tolist() for _ in batches[done:]] == batches[done:]
    with make_batch_reader(folder, ["id"], **options) as other:
        other.load_state_dict(states[3])
        assert [next(other).id.tolist() for _ in batches[3:]] == batches[3:]
        if num_epochs is not None:
            assert list(other) == []


@pytest.mark.parametrize(
    "name",
    varied(
        ("self", "class", "a b", ""),
        ("x", "cls", "fn", "version", "_x", "_fields", "a.b", "1", "count", "é", "batch", "*"),
    ),
)
def test_columns_of_any_name(tmp_path: Path, name: str) -> None:
    columns = {name: [1, 2, 3], "other": [1.5, None, float("nan")]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    if not name:
        with pytest.raises(ForebayError):
            make_batch_reader(str(tmp_path))
        return
    with make_batch_reader(str(tmp_path), shuffle_row_groups=False) as reader:
        [batch] = reader
        assert batch._fields == (name, "other") == tuple(reader.schema.fields)
    assert batch._asdict()[name].tolist() == [1, 2, 3] == batch[0].tolist()
    assert name == "_fields" or getattr(batch, name).tolist() == [1, 2, 3]
    assert batch.other[0] == 1.5 and np.isnan(batch.other[1:]).all()


@pytest.mark.parametrize(
    "kind",
    varied(
        ("bool", "int64", "float16", "float"),
        ("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64", "double"),
    ),
)
def test_numbers_and_bools_keep_their_type(tmp_path: Path, kind: str) -> None:
    values = pa.array([0, 1, 1]).cast(kind)
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet")
    with make_batch_reader(str(tmp_path), shuffle_row_groups=False) as reader:
        [batch] = reader
        found = reader.schema.fields["x"].numpy_dtype
    assert batch.x.dtype == found == np.dtype(values.type.to_pandas_dtype()) and batch.x.shape == (3,)
    assert batch.x.astype(int).tolist() == [0, 1, 1]


def test_nulls_of_integers_are_refused_by_their_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0, None, 1]}), tmp_path / "a.parquet")
    with make_batch_reader(str(tmp_path)) as reader, pytest.raises(NullLabel, match=r"a\.parquet:0:1: .*column 'x'"):
        next(reader)


def test_fields_are_patterns_of_whole_names(folder: str) -> None:
    for fields, expected in (
        (["x.", "id"], ("x0", "x1", "x2", "x3", "id")),
        (["c0", "c"], None),
        (["i.|x0"], ("id", "x0")),
    ):
        if expected is None:
            with pytest.raises(ForebayError):
                make_batch_reader(folder, fields)
            continue
        with make_batch_reader(folder, fields) as reader:
            assert next(reader)._fields == expected


@pytest.mark.parametrize("name", varied(("price ($", "*"), ("a[b", "+", "\\")))
def test_a_field_may_have_a_name_that_is_no_pattern(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"other": [1], name: [2]}), tmp_path / "a.parquet")
    with make_batch_reader(str(tmp_path), [name]) as reader:
        assert next(reader)._fields == (name,)
    with pytest.raises(InvalidOption, match="match no column"):
        make_batch_reader(str(tmp_path), [f"{name}["])


@pytest.mark.parametrize(
    "values",
    varied(
        (pa.array(["a"]).dictionary_encode(), pa.array([0], pa.timestamp("us", "UTC"))),
        (pa.array([0]).cast(pa.decimal128(20)), pa.array([0], pa.date32()), pa.array([[1]]), pa.array([None])),
    ),
)
def test_columns_without_numbers_are_named(tmp_path: Path, values: pa.Array) -> None:
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet")
    with pytest.raises(WrongType, match=r"\['x'\] hold no numbers"):
        make_batch_reader(str(tmp_path))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_reader_goes_on_after_an_error(folder: str, monkeypatch: pytest.MonkeyPatch, error: type) -> None:
    def fail(_: BatchQueue) -> None:
        raise error

    with make_batch_reader(folder, ["id"], batch_size=50, num_epochs=2) as reader:
        ids = ids_of(islice(reader, 3))
        with monkeypatch.context() as patched:
            patched.setattr(BatchQueue, "get", fail)
            with pytest.raises(error):
                next(reader)
        assert not reader.last_row_consumed
        with pytest.raises(NotImplementedError):
            reader.reset()
        ids += ids_of(reader)
    assert np.bincount(ids).tolist() == [2] * 400


def test_a_dropped_reader_ends_its_threads_at_once(folder: str) -> None:
    gc.disable()
    try:
        reader = make_batch_reader(folder, ["id"], batch_size=50)
        next(reader)
        known = weakref.ref(reader.loader)
        del reader
        assert known() is None
    finally:
        gc.enable()


def _table(heading: str) -> dict[str, str]:
    """Second column of the table below a heading, by the names in the first one."""
    part = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for line in part.splitlines():
        if cells := re.match(r"\| (`[^|]+) \| (\w[\w ]*?) \|", line):
            found |= dict.fromkeys(re.findall(r"`(\w+)[^`]*`", cells[1]), cells[2])
    return found


IGNORED: dict[str, tuple[Any, ...]] = {
    "reader_pool_type": ("thread", "process", "dummy"),
    "workers_count": (1, 10),
    "results_queue_size": (1, 50),
    "cache_row_size_estimate": (None, 100),
    "hdfs_driver": ("libhdfs3", "libhdfs"),
    "zmq_copy_buffers": (True, False),
    "convert_early_to_numpy": (False, True),
}


def test_the_page_names_every_argument_and_says_what_it_does(folder: str) -> None:
    told = _table("Arguments")
    defaults = {name: each.default for name, each in inspect.signature(make_batch_reader).parameters.items()}
    assert sorted(told) == sorted(set(defaults) - set(OWN))
    assert {name for name, word in told.items() if word == "refused"} == set(REFUSED)
    assert {name for name, word in told.items() if word == "no effect"} == set(IGNORED)
    assert set(told.values()) == {"same", "differs", "refused", "no effect"}
    with make_batch_reader(folder, ["id"], **dict.fromkeys(REFUSED)) as reader:
        plain = ids_of(reader)
    for name, values in IGNORED.items():
        for value in values:
            with make_batch_reader(folder, ["id"], **{name: value}) as reader:
                assert ids_of(reader) == plain


def test_the_page_names_every_part_of_the_reader(folder: str) -> None:
    told = _table("The reader")
    with make_batch_reader(folder, ["id"]) as reader:
        for name, word in told.items():
            assert hasattr(reader, name) == (word != "missing"), name


@pytest.mark.parametrize("make", [lambda folder: folder, lambda folder: [f"{folder}/a.parquet", f"{folder}/b.parquet"]])
def test_one_address_or_several(folder: str, make: Callable[[str], Any]) -> None:
    with make_batch_reader(dataset_url_or_urls=make(folder), schema_fields=["id"], seed=None) as reader:
        assert sorted(ids_of(reader)) == [*range(400)]


def test_no_address_is_refused() -> None:
    with pytest.raises(InvalidOption, match="empty list"):
        make_batch_reader([])
