"""Augments change rows in the same way at any world, number of lanes and batch, and after any resume."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay as fb
from forebay.data.plan.order import Order
from forebay.data.transform.row_random import RowRandom
from forebay.errors import AugmentFailed

SIZES = (1, 2, 3, 5)
Values = list[tuple[float, ...]]


@pytest.fixture
def small(small: Any) -> Any:
    """The dataset without lists without padding, which an augment cannot get."""
    features = {name: each for name, each in small.transform.features.items() if name != "all_tags"}
    return replace(small, transform=fb.Transform(**features))


def noisy(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    batch["dense"] += rng.normal(0, 0.1, 2)
    return {**batch, "id": batch["id"].copy(), "drawn": np.column_stack([rng.integers(1 << 31), rng.bernoulli()])}


def by_row(batches: Any) -> dict[int, Values]:
    """Changed values by id, of each time that a row came."""
    found: dict[int, Values] = {}
    for batch in batches:
        columns = zip(batch["id"].tolist(), batch["dense"].tolist(), batch["drawn"].tolist(), strict=True)
        for row, dense, drawn in columns if batch.weight else ():
            found.setdefault(row, []).append((*dense, *drawn))
    return found


def epoch_of(small: Any, *, size: int = 1, lanes: int = 6, epoch: int = 1, global_batch: int = 16) -> dict[int, Values]:
    plan = fb.build_plan(small.manifest, seed=7, lanes=lanes, shuffle_rows=16)
    found: dict[int, Values] = {}
    for rank in range(size):
        world, options = fb.World(rank=rank, size=size), {"global_batch": global_batch, "augment": noisy}
        with fb.Loader(plan, small.transform, world=world, epoch=epoch, **options) as loader:
            found |= by_row(loader)
    return found


@pytest.fixture
def expected(small: Any) -> dict[int, Values]:
    return epoch_of(small)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.sampled_from(SIZES), lanes=st.integers(5, 40), global_batch=st.integers(5, 300))
def test_rows_are_equal_at_any_world_lanes_and_batch(
    small: Any, expected: dict[int, Values], size: int, lanes: int, global_batch: int
) -> None:
    assert len(expected) == small.plan.num_rows
    assert epoch_of(small, size=size, lanes=lanes, global_batch=global_batch) == expected


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.sampled_from(SIZES), stop=st.integers(1, 10))
def test_rows_are_equal_after_a_resume_in_another_world(
    small: Any, expected: dict[int, Values], size: int, stop: int
) -> None:
    with small.loader(epoch=1, augment=noisy) as loader:
        batches = iter(loader)
        found = by_row(next(batches) for _ in range(stop))
        cursor = loader.cursor()
    for rank in range(size):
        other = pickle.loads(pickle.dumps(small.loader(world=fb.World(rank=rank, size=size), augment=noisy)))
        with other as loader:
            loader.seek(cursor)
            found |= by_row(loader)
    assert found == expected


def test_epochs_and_seeds_differ_and_blocks_are_shared(small: Any, cache: fb.DiskCache) -> None:
    with small.loader(cache) as loader:
        plain = {tuple(row) for batch in loader for row in batch["dense"].tolist()}
    with small.loader(cache, augment=noisy, epochs=2) as loader:
        epochs = [by_row(loader) for _ in range(2)]
        assert loader.counters["parquet_opens"] == 0, "blocks of the plain loader are used"
        assert loader.counters["augment_s"] > 0
    other = fb.build_plan(small.manifest, seed=8)
    with fb.Loader(other, small.transform, cache, global_batch=16, augment=noisy) as loader:
        epochs.append(by_row(loader))
    values = [{values for each in epoch.values() for values in each} for epoch in epochs]
    assert not (values[0] & values[1] or values[0] & values[2])
    with small.loader(cache) as loader:
        assert {tuple(row) for batch in loader for row in batch["dense"].tolist()} == plain


def repeating(small: Any, kind: str) -> Order:
    if kind == "sampled":
        return fb.Sampled(small.plan, balance="clicked", rows=3 * small.plan.num_rows)
    return fb.Mixture({"a": small.plan, "b": fb.build_plan(small.manifest.take([0]), seed=7)}, {"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("kind", ["sampled", "mixture"])
def test_copies_of_a_row_get_different_numbers(small: Any, kind: str) -> None:
    order, found = repeating(small, kind), []
    for size in (1, 3):
        found.append(Counter[Any]())
        for rank in range(size):
            world = fb.World(rank=rank, size=size)
            with fb.Loader(order, small.transform, world=world, global_batch=16, augment=noisy) as loader:
                for row, values in by_row(loader).items():
                    found[-1].update((row, each) for each in values)
    assert found[0] == found[1]
    assert sum(found[0].values()) == order.num_rows > len({row for row, _ in found[0]})
    assert set(found[0].values()) == {1}


def test_windows_have_numbers_of_their_own(tmp_path: Path) -> None:
    times = pd.date_range("2024-01-01", periods=60, freq="h")
    table = pa.table({"meter": ["a"] * 60 + ["b"] * 60, "ts": [*times, *times], "load": np.arange(120.0)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    manifest = fb.scan(str(tmp_path))
    part = fb.Sequences(manifest, entity="meter", time="ts", past=fb.History(["load"], steps=4))

    def jittered(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
        return {**batch, "moved": batch["past"][:, :, 0] + rng.uniform(size=1)}

    found: list[dict[float, float]] = []
    for size in (1, 2):
        moved: dict[float, float] = {}
        for rank in range(size):
            plan, world = fb.build_plan(part, seed=1, lanes=4), fb.World(rank=rank, size=size)
            with fb.Loader(plan, part.transform, world=world, global_batch=10, augment=jittered) as loader:
                for batch in loader:
                    moved |= dict(zip(batch["past"][:, 0, 0].tolist(), batch["moved"][:, 0].tolist(), strict=True))
        found.append(moved)
    assert found[0] == found[1] and len(found[0]) > 100
    assert len({round(after - before, 6) for before, after in found[0].items()}) == len(found[0])


def test_it_runs_in_the_gathering_thread_and_its_memory_is_its_own(small: Any) -> None:
    threads, kept = set(), np.zeros((1000, 1))

    def counted(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
        threads.add(threading.current_thread().name)
        own = kept[: len(rng)]
        own += 1
        return {**batch, "number": own, "reversed": batch["dense"][:, ::-1]}

    with small.loader(augment=fb.Augment(counted, version="1")) as loader:
        batches = list(loader)
    assert [set(batch["number"].ravel().tolist()) for batch in batches] == [{n + 1.0} for n in range(len(batches))]
    assert all((batch["reversed"].flip(1) == batch["dense"]).all() for batch in batches)
    assert threads == {"forebay-gather"}


def wider(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    return {**batch, "dense": batch["dense"].astype(np.float64 if 3 in batch["id"] else np.float32)}


def narrower(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    return {**batch, "dense": batch["dense"][:, : 1 if 3 in batch["id"] else 2]}


def richer(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    return batch | ({"extra": batch["id"]} if 3 in batch["id"] else {})


def fails(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    if 3 in batch["id"]:
        raise ZeroDivisionError("by three")
    return batch


@pytest.mark.parametrize(
    ("augment", "text"),
    [
        (wider, r"wider returned 'dense' as float64 \[2\] for .*, and as float32 \[2\] for the first batch .*cast"),
        (narrower, r"narrower returned 'dense' as float32 \[1\] for"),
        (richer, r"richer returned 'extra' as int64 \[\] for .*, and as nothing for the first batch"),
        (fails, "fails raised ZeroDivisionError in .*: by three. Mend the function"),
    ],
)
def test_an_error_names_function_batch_and_rows(small: Any, augment: Callable[..., Any], text: str) -> None:
    with small.loader(epoch=1) as loader:
        number, bad = next((n, batch) for n, batch in enumerate(loader) if 3 in batch["id"])
        assert number > 0, "the first batch is the one that others are compared with"
        named = ", ".join(map(str, list(bad.rows())[:3]))
    with small.loader(epoch=1, augment=augment) as loader, pytest.raises(AugmentFailed, match=text) as failure:
        list(loader)
    place = f"the batch at epoch 1, position {bad.position} (rows {named} and {len(bad['id']) - 3} more)"
    assert place in str(failure.value)


def test_held_out_rows_stay_as_they_are(small: Any) -> None:
    data = partial(fb.Data, plan=small.plan, transform=small.transform, global_batch=16)
    fb.Job(train=print, data=data(augment=noisy), held_out=data(), cache=None)
    with pytest.raises(fb.errors.InvalidOption, match="held_out has augment=.*noisy.* Leave augment= out"):
        fb.Job(train=print, data=data(augment=noisy), held_out=data(augment=noisy), cache=None)
