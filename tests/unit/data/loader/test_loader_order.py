"""The loader delivers the plan's order for any cache, world, number of threads and timing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import forebay as fb
from forebay.data.cache import source
from forebay.data.cache.builders.data_workers import DataWorkers, NumReads
from forebay.data.parquet import reading
from forebay.errors import CursorMismatch

Ids = Callable[[object], list[list[int]]]
filters = pytest.mark.parametrize("small", [None, "c1 < 600 and id != 3"], indirect=True)


def first_ids(small: Any) -> dict[tuple[str, int], int]:
    """Id of the first row of each row group."""
    groups = list(fb.scan(str(small.folder)))
    firsts = np.cumsum([0, *(group.rows for group in groups)]).tolist()
    return {(group.uri, group.index): first for group, first in zip(groups, firsts, strict=False)}


def kept_ids(small: Any) -> list[int]:
    table = pq.read_table(small.folder)
    if small.manifest.kept:
        table = table.filter((pc.field("c1") < 600) & (pc.field("id") != 3))
    return table["id"].to_pylist()


def planned(small: Any, epoch: int, global_batch: int = 16, start: int = 0) -> list[list[int]]:
    """Ids that the plan promises. Ids count rows in file order, without empty row groups."""
    first_id = np.array([first_ids(small)[group.uri, group.index] for group in small.manifest])
    ids, position = [], start
    while size := small.plan.batch_size(position, global_batch):
        block, row = small.plan.batch(epoch, position, global_batch)
        ids.append((first_id[block] + row).tolist())
        position += size
    return ids


@pytest.mark.usefixtures("gatherers")
@filters
def test_every_epoch_is_the_planned_permutation(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    with small.loader(cache) as loader:
        epochs = [epoch_ids(loader) for _ in range(3)]
    assert epochs == [planned(small, epoch) for epoch in range(3)]
    assert all(sorted(sum(ids, [])) == kept_ids(small) for ids in epochs)
    assert small.plan.num_rows == small.manifest.num_rows == len(kept_ids(small))
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.usefixtures("more_gatherers")
@pytest.mark.parametrize("quota", ["cold", "warm", "half", "disabled"])
@pytest.mark.parametrize("num_reads", [1, 5, "auto"])
def test_cache_state_threads_and_delays_change_nothing(
    small: Any, tmp_path: Path, epoch_ids: Ids, monkeypatch: pytest.MonkeyPatch, quota: str, num_reads: NumReads
) -> None:
    cache = None if quota == "disabled" else fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
    if quota == "warm":
        with small.loader(cache) as loader:
            epoch_ids(loader)
    if quota == "half":
        with small.loader(cache) as loader:
            epoch_ids(loader)
        blocks = sorted((tmp_path / "cache" / "blocks").rglob("*.block"))
        assert len(blocks) == len(small.manifest)
        for block in blocks[::2]:
            block.unlink()
    delays, original = random.Random(str(num_reads)), reading.open_input

    def late(uri: str) -> Any:
        time.sleep(delays.random() * 0.02)
        return original(uri)

    def with_threads(*arguments: Any, **options: Any) -> Any:
        workers = DataWorkers(core_share=1.0, num_reads=num_reads)
        return source.LocalSource(arguments[1], arguments[0], counters=arguments[2], workers=workers)

    monkeypatch.setattr(reading, "open_input", late)
    monkeypatch.setattr("forebay.data.loader.loader.open_source", with_threads)
    with small.loader(cache) as loader:
        assert epoch_ids(loader) == planned(small, 0)
        opens = {"warm": 0, "half": len(small.manifest) // 2 + len(small.manifest) % 2}
        if quota in opens:
            assert loader.counters["parquet_opens"] == opens[quota]


@pytest.mark.usefixtures("gatherers")
@pytest.mark.parametrize(
    ("size", "small"), [*((size, None) for size in range(1, 7)), (3, "c1 < 600")], indirect=["small"]
)
def test_ranks_share_the_same_global_batches(small: Any, cache: fb.DiskCache, epoch_ids: Ids, size: int) -> None:
    batches: list[list[Any]] = []
    for rank in range(size):
        with small.loader(cache, world=fb.World(rank=rank, size=size)) as loader:
            batches.append(list(loader))
    assert len({len(part) for part in batches}) == 1
    parts = [epoch_ids(part) for part in batches]
    for number, whole in enumerate(planned(small, 0)):
        part_ids = [part[number] for part in parts]
        assert sorted(sum(part_ids, [])) == sorted(whole)
        assert all([whole.index(i) for i in ids] == sorted(whole.index(i) for i in ids) for ids in part_ids)
        group = [part[number] for part in batches]
        assert {(batch.position, batch.size) for batch in group} == {(group[0].position, len(whole))}
        assert [batch.weight for batch in group] == [len(ids) * size / len(whole) for ids in part_ids]


@pytest.mark.usefixtures("gatherers")
def test_filters_of_one_data_set_share_its_blocks(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    with small.loader(cache) as loader:
        whole = sorted(sum(epoch_ids(loader), []))
    for where in ("c1 < 600", "c1 >= 600"):
        plan = fb.build_plan(fb.scan(str(small.folder), where=where), lanes=6)
        with fb.Loader(plan, small.transform, cache, global_batch=16) as loader:
            found = epoch_ids(loader)
            assert (loader.counters["parquet_opens"], loader.counters["hits"]) == (0, len(plan.manifest))
        whole = sorted(set(whole) - set(sum(found, [])))
    assert whole == []


@pytest.mark.usefixtures("more_gatherers")
@filters
def test_resume_at_every_position_also_twice_and_elsewhere(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    whole = planned(small, 0)
    with small.loader(cache) as loader:
        cursors = [loader.cursor()] + [loader.cursor() for _ in loader]
    for done, cursor in enumerate(cursors):
        again = fb.Cursor.from_json(cursor.to_json())
        left = whole[done:] or planned(small, 1)
        with small.loader(cache) as loader:
            for _ in range(2):
                loader.seek(again)
                assert epoch_ids(loader) == left
            assert epoch_ids(loader) == planned(small, 1 if whole[done:] else 2)
        ranks = []
        for rank in range(4):
            with small.loader(cache, world=fb.World(rank=rank, size=4), global_batch=29) as loader:
                loader.seek(again)
                ranks.append(epoch_ids(loader))
        together = [sorted(sum(parts, [])) for parts in zip(*ranks, strict=True)]
        epoch, start = (0, cursor.position) if whole[done:] else (1, 0)
        assert together == [sorted(ids) for ids in planned(small, epoch, 29, start)]


@pytest.mark.usefixtures("gatherers")
def test_resume_from_a_resumed_run(small: Any, epoch_ids: Ids) -> None:
    whole, got, cursor = planned(small, 0), [], None
    while len(got) < len(whole):
        with small.loader() as loader:
            if cursor:
                loader.seek(cursor)
            for number, batch in enumerate(loader):
                got += epoch_ids([batch])
                cursor = loader.cursor()
                if number == 2:
                    break
    assert got == whole
    assert cursor == fb.Cursor(plan_id=small.plan.id, epoch=1, position=0, global_batch=16)


def test_a_broken_off_epoch_goes_on_where_it_stopped(small: Any, cache: fb.DiskCache, epoch_ids: Ids) -> None:
    with small.loader(cache) as loader:
        first = next(iter(loader))
        assert epoch_ids([first]) + epoch_ids(loader) == planned(small, 0)
        assert loader.epoch == 1
        assert len(loader) == loader.batches_left == small.plan.num_batches(16)


def test_drop_reports_what_it_dropped(small: Any, cache: fb.DiskCache) -> None:
    with small.loader(cache, global_batch=50, last="drop") as loader:
        assert [batch.size for batch in loader] == [50, 50, 50]
        assert loader.dropped_rows == 26
        assert loader.cursor().epoch == 1
        loader.seek(fb.Cursor(plan_id=small.plan.id, epoch=1, position=150, global_batch=50))
        assert (loader.epoch, loader.dropped_rows) == (2, 52)


@pytest.mark.usefixtures("gatherers")
def test_tiny_data_gives_every_rank_a_step(parquet_folder: Callable[..., Path], epoch_ids: Ids) -> None:
    manifest = fb.scan(str(parquet_folder({"a.parquet": [2, 1]})))
    plan = fb.build_plan(manifest, lanes=8)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense("x0"))
    seen = []
    for rank in range(8):
        with fb.Loader(plan, transform, world=fb.World(rank=rank, size=8), global_batch=8) as loader:
            (batch,) = loader
            assert batch["x"].shape == (1, 1)
            assert torch.isfinite(batch["x"]).all()
            assert batch.num_rows == (1 if batch.weight else 0)
            seen += epoch_ids([batch])
    assert sorted(sum(seen, [])) == [0, 1, 2]


def test_cursor_of_another_plan_is_refused(small: Any) -> None:
    other = fb.build_plan(small.manifest, seed=8, lanes=6, shuffle_rows=16)
    with (
        fb.Loader(other, small.transform, global_batch=16) as loader,
        pytest.raises(CursorMismatch, match=r"made with plan .*seed=8.*[Gg]ive the same"),
    ):
        loader.seek(small.loader().cursor())
    with pytest.raises(CursorMismatch, match="outside"):
        small.loader().seek(fb.Cursor(plan_id=small.plan.id, epoch=0, position=177, global_batch=16))
