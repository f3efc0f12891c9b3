"""Lists without padding: equal to Arrow's in every batch, at any world size, from any cache and after a resume."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay as fb
from forebay.data.transform.features.ragged import LIST_VALUES, list_parts
from forebay.errors import InvalidOption

Lists = list[list[int | None] | None]
HUGE: Lists = [[1], [], list(range(5000)), None, [2, None]]
ITEMS = st.lists(st.none() | st.lists(st.none() | st.integers(-9, 2**60), max_size=6), min_size=1, max_size=24)


def written(folder: Path, lists: Lists, row_group_size: int = 4) -> fb.Plan:
    table = pa.table({"id": range(len(lists)), "items": pa.array(lists, pa.list_(pa.int64()))})
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / "a.parquet", row_group_size=row_group_size)
    return fb.build_plan(fb.scan(str(folder)), seed=3, lanes=5, shuffle_rows=8)


def transform_of(**options: Any) -> fb.Transform:
    """The id between lists, so that the positions of arrays differ between a block and a batch."""
    return fb.Transform(
        items=fb.Ragged("items", padded=False, **options),
        id=fb.Label("id", dtype="int64"),
        floats=fb.Ragged("items", dtype="float32", max_len=2, padded=False),
        padded=fb.Ragged("items", max_len=2, dtype="float32"),
    )


def lists_of(batch: Any, name: str) -> list[list[Any]]:
    values, lengths = torch.as_tensor(batch[name]), torch.as_tensor(batch[f"{name}_lengths"])
    assert lengths.dtype == torch.int32 and int(lengths.sum()) == len(values)
    return [part.tolist() for part in torch.split(values, lengths.tolist())]


def check(batch: fb.Batch, lists: Lists) -> list[int]:
    """Compare a batch with the lists of the file. Returns its ids, none for a dummy row."""
    ids = np.asarray(batch["id"]).tolist()
    expected = [[value or 0 for value in lists[row] or []] for row in ids]
    assert list(batch) == ["items", "items_lengths", "id", "floats", "floats_lengths", "padded", "padded_lengths"]
    assert batch.lists == ("items", "floats")
    assert lists_of(batch, "items") == expected
    padded = [row[:length].tolist() for row, length in zip(batch["padded"], batch["padded_lengths"], strict=True)]
    assert lists_of(batch, "floats") == padded
    return ids if batch.weight else []


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lists=ITEMS, size=st.sampled_from([1, 2, 5]), as_numpy=st.booleans(), global_batch=st.integers(1, 9))
def test_lists_of_every_rank_are_those_of_arrow(
    tmp_path: Path, lists: Lists, size: int, as_numpy: bool, global_batch: int
) -> None:
    plan, seen = written(tmp_path, lists), []
    for rank in range(size):
        options: Any = {"as_numpy": as_numpy, "global_batch": max(global_batch, 1)}
        with fb.Loader(plan, transform_of(), world=fb.World(rank=rank, size=size), **options) as loader:
            for batch in loader:
                seen += check(batch, lists)
    assert sorted(seen) == list(range(len(lists)))


@pytest.mark.parametrize("lists", [HUGE, [[]] * 9, [None] * 9, [[7]]], ids=["huge", "empty", "null", "one"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_cached_block_gives_the_same_lists(tmp_path: Path, lists: Lists, size: int) -> None:
    plan = written(tmp_path / "data", lists)
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
    for parquet_opens in (len(plan.manifest), 0):
        seen: list[int] = []
        opened = 0
        for rank in range(size):
            with fb.Loader(plan, transform_of(), cache, global_batch=3, world=fb.World(rank=rank, size=size)) as loader:
                for batch in loader:
                    seen += check(batch, lists)
                opened += loader.counters["parquet_opens"]
        assert sorted(seen) == list(range(len(lists))) and opened == parquet_opens


def test_a_resumed_epoch_has_the_lists_of_an_uninterrupted_one_at_another_world_size(tmp_path: Path) -> None:
    lists: Lists = [[row] * (row * 7 % 11) for row in range(40)]
    plan = written(tmp_path, lists)
    with fb.Loader(plan, transform_of(), global_batch=6) as loader:
        cursors, batches = [], []
        for batch in loader:
            batches.append(check(batch, lists))
            cursors.append(loader.cursor())
    for done, cursor in enumerate(cursors[:-1], start=1):
        seen: list[int] = []
        for rank in range(2):
            with fb.Loader(plan, transform_of(), global_batch=6, world=fb.World(rank=rank, size=2)) as loader:
                loader.seek(cursor)
                for batch in loader:
                    seen += check(batch, lists)
        assert sorted(seen) == sorted(sum(batches[done:], []))


def test_a_cached_list_takes_no_room_for_padding(tmp_path: Path) -> None:
    lists: Lists = [list(range(200)) if row == 7 else [row] for row in range(1000)]
    plan, sizes = written(tmp_path / "data", lists, row_group_size=1000), {}
    for padded in (True, False):
        cache = fb.DiskCache(tmp_path / str(padded), quota_bytes=64 << 20, min_free_bytes=0)
        transform = fb.Transform(items=fb.Ragged("items", max_len=200, padded=padded))
        with fb.Loader(plan, transform, cache, global_batch=100) as loader:
            batches = sum(sum(array.nbytes for array in batch.values()) for batch in loader)
        (block,) = (tmp_path / str(padded)).rglob("*.block")
        sizes[padded] = block.stat().st_size, batches
    assert sizes[True][1] == 1000 * (200 * 8 + 4) and sizes[False][1] == (999 + 200) * 8 + 1000 * 4
    assert 0 <= sizes[True][0] - sizes[True][1] < 1024 and 0 <= sizes[False][0] - sizes[False][1] < 1024


@pytest.fixture
def whole(tmp_path: Path) -> fb.Batch:
    plan = written(tmp_path, [[row] * (row % 4) for row in range(20)])
    with fb.Loader(plan, transform_of(), global_batch=20) as loader:
        return next(iter(loader))


@pytest.mark.parametrize("rows", [[3], [5, 0, 19, 5], [], list(range(20))])
def test_rows_that_are_taken_have_their_lists(whole: fb.Batch, rows: list[int]) -> None:
    part = whole.take(np.array(rows, np.int64), weight=0.5)
    for name in ("items", "floats"):
        all_lists = lists_of(whole, name)
        assert lists_of(part, name) == [all_lists[row] for row in rows]
    assert part["id"].tolist() == whole["id"][rows].tolist()
    assert part.lists == whole.lists == ("items", "floats")
    again = part.take(np.arange(len(rows)), weight=0.5)
    assert lists_of(again, "items") == lists_of(part, "items")


@pytest.mark.parametrize("copied", [lambda batch: batch.to("cpu"), lambda batch: pickle.loads(pickle.dumps(batch))])
def test_copies_of_a_batch_know_its_lists(whole: fb.Batch, copied: Callable[[fb.Batch], fb.Batch]) -> None:
    copy = copied(whole)
    assert copy.lists == whole.lists and lists_of(copy, "items") == lists_of(whole, "items")


def test_an_augment_of_lists_without_padding_is_refused(tmp_path: Path) -> None:
    plan = written(tmp_path, [[1], [2, 3]])
    options: dict[str, Any] = {"transform": transform_of(), "global_batch": 2, "augment": lambda batch, _rng: batch}
    for give in (lambda: fb.Loader(plan, **options), lambda: fb.Data(plan=plan, **options)):
        with pytest.raises(InvalidOption, match="feature 'items' is Ragged"):
            give()


def test_lists_of_several_data_sets_come_in_one_batch(tmp_path: Path) -> None:
    lists: dict[str, Lists] = {"a": [[1] * row for row in range(12)], "b": [[2], None, [2, 2]] * 4}
    plans = {name: written(tmp_path / name, each) for name, each in lists.items()}
    mixture = fb.Mixture(plans, {"a": 1, "b": 1})
    seen: dict[str, list[list[int]]] = {"a": [], "b": []}
    with fb.Loader(mixture, transform_of(), global_batch=5) as loader:
        for batch in loader:
            for source, row, found in zip(
                batch.source.tolist(), batch["id"].tolist(), lists_of(batch, "items"), strict=True
            ):
                name = batch.names[source]
                assert found == (lists[name][row] or [])
                seen[name].append(found)
    assert all(len(found) >= 12 for found in seen.values())


@pytest.mark.parametrize("options", [{}, {"dtype": "int32"}, {"buckets": 100}, {"buckets": 100, "dtype": "int64"}])
def test_values_without_padding_have_the_promised_dtype(options: dict[str, Any]) -> None:
    """Also blocks of a row group without lists: blocks of one dataset must agree."""
    feature = fb.Ragged("items", padded=False, **options)
    lists = pa.array([[1, 2], None, [3]])
    columns = [lists, pa.chunked_array([lists, lists]), pa.nulls(3)]
    blocks = [fb.Transform(x=feature).apply(pa.table({"items": column})) for column in columns]
    assert {block.arrays[f"{LIST_VALUES}x"].dtype.name for block in blocks} == {feature.array_dtype}


@pytest.mark.parametrize(
    "kind", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view, lambda item: pa.list_(item, 2)]
)
@pytest.mark.parametrize("item", [pa.null(), pa.int32()], ids=str)
def test_parts_have_every_item(kind: Callable[[pa.DataType], pa.DataType], item: pa.DataType) -> None:
    """Kernels read them by address. Arrow cast large lists of nulls to as many items as there are lists."""
    whole = pa.array([[None] * 2, None, [None] * 2, [None] * 2], kind(item))
    for lists in (whole, whole[1:], whole[:0]):
        values, starts, lengths = list_parts(lists)
        found = [
            values.slice(start, length).to_pylist() if length else []
            for start, length in zip(starts, lengths, strict=True)
        ]
        assert found == [each or [] for each in lists.to_pylist()]
