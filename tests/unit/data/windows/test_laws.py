"""Laws of the order over windows: any world, any cache state, resume at every batch, fork and spawn."""

from __future__ import annotations

import gc
import hashlib
import importlib
import multiprocessing
import os
import pickle
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.windows.conftest import random_series, write_series

import forebay as fb
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.source import LocalCache, LocalSource
from forebay.data.kernels.calls import load
from forebay.runtime.metrics import Counters

GOLDEN = "a72eaebbf82fc618"


def part_of(folder: Path, cache: fb.DiskCache | None = None, **options: Any) -> Any:
    rng = np.random.default_rng(21)
    data = folder / "data"
    manifest = fb.scan(str(data)) if data.exists() else write_series(data, random_series(rng), "day", rng)
    options = {
        "past": fb.History(["load", "temp"], steps=6),
        "future": fb.Horizon(["load"], steps=2),
        "stride": 2,
    } | options
    series = fb.Sequences(manifest, entity="meter", time="ts", scale="standard", cache=cache, **options)
    return series.split(fractions=(0.8,))[0]


def rows_of(batches: Any) -> list[list[tuple[bytes, ...]]]:
    """Windows and their bits in each batch, without weight 0."""
    arrays = [(batch.num_rows, batch.windows, batch["past"], batch.get("future", batch["past"])) for batch in batches]
    return [[tuple(array[row].tobytes() for array in each) for row in range(rows)] for rows, *each in arrays]


def loader_of(part: Any, plan: fb.Plan, cache: Any = None, **options: Any) -> fb.Loader:
    return fb.Loader(plan, part.transform, cache, global_batch=16, as_numpy=True, **options)


@pytest.mark.parametrize("size", [2, 3, 5, 16])
@pytest.mark.parametrize("shuffle_rows", [4, 1000])
def test_every_world_sees_the_same_global_batches(
    size: int, shuffle_rows: int, tmp_path: Path, cache: fb.DiskCache
) -> None:
    part = part_of(tmp_path, cache)
    plan = fb.build_plan(part, seed=3, lanes=16, shuffle_rows=shuffle_rows)
    alone = rows_of(loader_of(part, plan, cache))
    ranks = [rows_of(loader_of(part, plan, cache, world=fb.World(rank=rank, size=size))) for rank in range(size)]
    assert [sorted(sum(parts, [])) for parts in zip(*ranks, strict=True)] == [sorted(batch) for batch in alone]
    windows = [row[0] for batch in alone for row in batch]
    assert len(windows) == len(set(windows)) == part.num_windows


@pytest.mark.parametrize("shift", [False, True])
def test_cold_warm_half_and_no_cache_give_the_same_bits(shift: bool, tmp_path: Path, cache: fb.DiskCache) -> None:
    options: dict[str, Any] = {"future": None, "past": fb.History(["load", "temp", "hour"], steps=6), "shift": shift}
    part = part_of(tmp_path, **options)
    plan = fb.build_plan(part, seed=3)

    def digest(cached: Any) -> str:
        found = hashlib.sha256()
        with loader_of(part, plan, cached, epochs=3) as loader:
            for _ in range(3):
                for batch in loader:
                    found.update(batch["past"].tobytes() + batch.windows.tobytes())
        return found.hexdigest()

    half = fb.DiskCache(tmp_path / "half", quota_bytes=256 << 10, min_free_bytes=0)
    assert len({digest(None), digest(cache), digest(cache), digest(half)}) == 1


@pytest.mark.variation
@pytest.mark.parametrize("num_reads", [1, 2, 5])
@pytest.mark.parametrize("state", ["cold", "warm", "half", "none"])
def test_ranks_data_workers_and_caches_give_the_same_batches(num_reads: int, state: str, tmp_path: Path) -> None:
    """1.5.2: 1 to 16 ranks, each with a source of its own."""
    part = part_of(tmp_path, stride=1)
    plan = fb.build_plan(part, seed=3, lanes=16, shuffle_rows=64)
    quota_bytes = part.manifest.num_bytes if state == "half" else 64 << 20
    expected = [sorted(batch) for batch in rows_of(loader_of(part, plan))]
    for size in range(1, 17):
        path = tmp_path / (f"cold-{size}" if state == "cold" else state)
        spec = fb.CacheSpec(path=str(path), quota_bytes=quota_bytes, min_free_bytes=0, num_reads=num_reads)
        cache = None if state == "none" else LocalCache(spec)
        ranks = [rows_of(loader_of(part, plan, cache, world=fb.World(rank=rank, size=size))) for rank in range(size)]
        assert [sorted(sum(parts, [])) for parts in zip(*ranks, strict=True)] == expected, size


def cut_off(block: Path) -> None:
    os.truncate(block, 100)


def flip_bit(block: Path) -> None:
    content = bytearray(block.read_bytes())
    content[len(content) // 2] ^= 1
    block.write_bytes(content)


def test_damaged_series_are_made_again(tmp_path: Path, cache: fb.DiskCache) -> None:
    """The fault law of blocks, over windows: every other file is cut off, and the rest have a flipped bit."""
    part = part_of(tmp_path, cache)
    plan = fb.build_plan(part, seed=3)
    with loader_of(part, plan, cache) as loader:
        expected = rows_of(loader)
    blocks = sorted((cache.path / "blocks").iterdir())
    for damage, block in zip(cycle([cut_off, flip_bit]), blocks, strict=False):
        damage(block)
    with loader_of(part, plan, cache) as loader:
        assert rows_of(loader) == expected
        # Blocks that no window of this part reads stay as they are.
        assert 2 <= loader.counters["quarantined"] == loader.counters["parquet_opens"] <= len(blocks)
    flip_bit(blocks[0])
    assert part_of(tmp_path, cache).statistics == part.statistics


def test_an_epoch_with_a_shift_has_other_windows(tmp_path: Path) -> None:
    part = part_of(tmp_path, future=None, shift=True, stride=6)
    plan = fb.build_plan(part, seed=3)
    with loader_of(part, plan) as loader:
        epochs = [{row[0] for batch in rows_of(loader) for row in batch} for _ in range(4)]
    assert len({frozenset(epoch) for epoch in epochs}) > 1
    assert {len(epoch) for epoch in epochs} == {part.num_windows}


def test_resume_at_every_batch_in_another_world(tmp_path: Path, cache: fb.DiskCache) -> None:
    part = part_of(tmp_path, cache, stride=1)
    plan = fb.build_plan(part, seed=3, lanes=6, shuffle_rows=8)
    with loader_of(part, plan, cache) as loader:
        cursors, batches = [loader.cursor()], []
        for batch in loader:
            batches.append(sorted(rows_of([batch])[0]))
            cursors.append(loader.cursor())
    assert len(batches) > 4
    for done, cursor in enumerate(cursors[:-1]):
        ranks = []
        for rank in range(2):
            with loader_of(part, plan, cache, world=fb.World(rank=rank, size=2)) as loader:
                loader.seek(cursor)
                ranks.append(rows_of(loader))
        assert [sorted(sum(parts, [])) for parts in zip(*ranks, strict=True)] == batches[done:]


def test_the_order_is_pinned(tmp_path: Path) -> None:
    """A literal: order, composition and ids of windows change only with a version of the plan or of the windows."""
    part = part_of(tmp_path)
    plan = fb.build_plan(part, seed=3)
    found = hashlib.sha256()
    position = 0
    while size := plan.batch_size(position, 16):
        rows = plan.batch(0, position, 16)
        found.update(part.windows.entity_steps(part.windows.locate(rows.block, rows.row)).astype("<i8").tobytes())
        position += size
    assert found.hexdigest()[:16] == GOLDEN


def test_one_pass_opens_each_row_group_once(tmp_path: Path, cache: fb.DiskCache) -> None:
    """1.5.3: statistics, three epochs, and other window lengths: the source is read by the first pass alone."""
    opens = 0
    for steps in (4, 6, 8):
        part = part_of(tmp_path, cache, past=fb.History(["load", "temp"], steps=steps))
        plan = fb.build_plan(part, seed=3)
        assert part.statistics["load"].count
        with loader_of(part, plan, cache) as loader:
            for _ in range(3):
                rows_of(loader)
            opens += int(loader.counters["parquet_opens"])
        opens += int(part.training.blocks.counters["parquet_opens"])
    assert opens == len(part.manifest.files)


def test_statistics_do_not_depend_on_the_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for reads in (1, 2, 4, 8):
        workers = DataWorkers(core_share=1.0, num_reads=reads)

        def source(_: Any, dataset: Any, counters: Counters, workers: DataWorkers = workers) -> LocalSource:
            return LocalSource(dataset, None, counters=counters, workers=workers)

        monkeypatch.setattr("forebay.data.windows.series_blocks.open_source", source)
        found.add(repr(part_of(tmp_path).statistics))
    assert len(found) == 1


def test_the_index_travels_and_data_does_not(tmp_path: Path, cache: fb.DiskCache) -> None:
    part = part_of(tmp_path, cache)
    plan = fb.build_plan(part, seed=3)
    with loader_of(part, plan, cache) as loader:
        next(iter(loader))
        packed = pickle.dumps(loader)
        assert len(packed) <= (64 << 10) + part.windows.nbytes
        with pickle.loads(packed) as copy:
            assert rows_of(copy) == rows_of(loader)


def test_arrays_of_a_pickle_may_be_read_only(tmp_path: Path, cache: fb.DiskCache) -> None:
    """Ray hands out read-only buffers. The compiled loops refused them."""
    part = part_of(tmp_path, cache)
    with loader_of(part, fb.build_plan(part, seed=3), cache) as loader:
        buffers: list[pickle.PickleBuffer] = []
        packed = pickle.dumps(loader, protocol=5, buffer_callback=buffers.append)
        with pickle.loads(packed, buffers=[bytes(each) for each in buffers]) as copy:
            assert rows_of(copy) == rows_of(loader)
        assert buffers


def _child(loader: fb.Loader, answer: Any) -> None:
    answer.put(rows_of(loader))


def _measured_child(loader: fb.Loader | None, answer: Any) -> None:
    """Private KiB, without mapped files, of this process after an epoch, or of one that has imported the same."""
    importlib.import_module("forebay.data.loader.loader")
    load()
    gc.freeze()  # a collection writes to the parent's objects, which copies 32 MiB after thousands of tests
    for _ in loader or ():
        pass
    private_kib, inode = 0, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            inode = words[4]
        elif words[0].startswith("Private_") and inode == "0":
            private_kib += int(words[1])
    answer.put(private_kib)


def _run(method: str, target: Any, loader: fb.Loader | None) -> Any:
    context = multiprocessing.get_context(method)
    answer = context.Queue()
    child = context.Process(target=target, args=(loader, answer))
    child.start()
    found = answer.get(timeout=120)
    child.join(30)
    assert child.exitcode == 0
    answer.close()
    answer.join_thread()
    return found


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_read_the_same(method: str, tmp_path: Path, cache: fb.DiskCache) -> None:
    part = part_of(tmp_path, cache)
    plan = fb.build_plan(part, seed=3)
    with loader_of(part, plan, cache) as loader:
        if method == "fork":
            next(iter(loader))
        assert _run(method, _child, loader) == rows_of(loader)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.variation)])
def test_a_child_holds_little_memory_of_its_own(method: str, tmp_path: Path) -> None:
    """1.5.10: 64 MiB of series, read from the cache, of which 8 MiB ahead."""
    (tmp_path / "data").mkdir()
    for number in range(4):
        columns = {"meter": np.full(1 << 20, number), "ts": np.arange(1 << 20)}
        values = np.random.default_rng(number).normal(size=(4, 1 << 20)).astype(np.float32)
        table = pa.table(columns | {f"x{column}": each for column, each in enumerate(values)})
        pq.write_table(table, tmp_path / "data" / f"{number}.parquet", row_group_size=1 << 18)
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=1 << 30, min_free_bytes=0)
    past = fb.History([f"x{number}" for number in range(4)], steps=96)
    manifest = fb.scan(str(tmp_path / "data"))
    series = fb.Sequences(manifest, entity="meter", time="ts", past=past, stride=96, scale="standard", cache=cache)
    options: dict[str, Any] = {"global_batch": 64, "as_numpy": True, "prefetch_bytes": 8 << 20}
    with fb.Loader(fb.build_plan(series), series.transform, cache, **options) as loader:
        empty, child = (_run(method, _measured_child, each) for each in (None, loader))
    assert child - empty <= 32 << 10, f"{child} KiB, an empty child has {empty}"
