"""Blocks of an examination, made with the reads in flight of a job: from a store that is far away, and from near."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

import forebay as fb
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.builders.reads_in_flight import ReadBounds, ReadsInFlight
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.doctor.rounds.cold_epoch import ColdEpoch
from forebay.doctor.rounds.deadline import Deadline
from forebay.doctor.rounds.production import BlockProduction, Produced
from forebay.doctor.rounds.sample import Sample, num_blocks, read_sample
from forebay.doctor.rounds.sample_pass import MOST_PASSES, BlockIO
from forebay.errors import CacheUnusable, TransformFailed
from forebay.world import World

LATENCY_S = 0.05
LONG = 1 << 30
"""Blocks of an epoch that no test reaches the end of."""
ALONE = World(rank=0, size=1)


class DistantFiles(LocalFileSystem):
    """Local files that take `LATENCY_S` to open. `opened` has their names in order, `most_inside` were open at once."""

    protocol = "distant"
    cachable = False
    guard = threading.Lock()
    opened: list[str] = []  # noqa: RUF012 - of the test
    num_inside = most_inside = 0

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        store = DistantFiles
        with store.guard:
            store.opened.append(Path(path).name)
            store.num_inside += 1
            store.most_inside = max(store.most_inside, store.num_inside)
        time.sleep(LATENCY_S)
        with store.guard:
            store.num_inside -= 1
        return super()._open(path, mode, **options)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> type[DistantFiles]:
    monkeypatch.setitem(known_implementations, "distant", {"class": f"{DistantFiles.__module__}.DistantFiles"})
    return DistantFiles


def sampled(data: fb.Data, store: type[DistantFiles] | None = None) -> Sample:
    """All row groups of `data`. The store has seen nothing yet."""
    sample = read_sample(data, ALONE, num_reads=8, deadline=Deadline(60))
    if store is not None:
        store.opened, store.num_inside, store.most_inside = [], 0, 0
    return sample


def data_of(folder: Path | str, transform: fb.Transform | None = None) -> fb.Data:
    transform = transform or fb.Transform(x=fb.Dense(["x0", "x1"]))
    return fb.Data(plan=fb.build_plan(fb.scan(folder), lanes=16), transform=transform, global_batch=8)


def made(block_io: BlockIO, workers: DataWorkers, epoch: ColdEpoch, *, least: int = 2) -> Produced:
    """One production, until it has made enough and at least `least` blocks."""
    production = BlockProduction(block_io, workers, epoch)
    production.start()
    give_up = time.monotonic() + 60
    while not production.has_made_enough(least):
        assert time.monotonic() < give_up
        time.sleep(0.002)
    return production.stop()


def source(sample: Sample, caches: list[DiskCache] | None = None) -> BlockIO:
    return BlockIO(sample=sample, caches=caches or [], from_source=True)


def test_reads_grow_from_round_to_round_as_in_a_long_epoch(
    store: type[DistantFiles], parquet_folder: Callable[..., Path]
) -> None:
    folder = parquet_folder({f"{number:02}.parquet": [8] for number in range(16)})
    sample = sampled(data_of(f"distant://{folder}"), store)
    epoch = ColdEpoch(LONG)
    workers = DataWorkers(auto_reads=ReadBounds(most=24))
    rounds = [made(source(sample), workers, epoch) for _ in range(3)]
    assert 8 < max(each.num_reads for each in rounds) <= 24
    # What this many reads need, if all are at work.
    assert all(each.read_s == pytest.approx(each.sums["remote_read_s"] / each.num_reads) for each in rounds)


def test_a_number_that_the_user_gave_stays(store: type[DistantFiles], parquet_folder: Callable[..., Path]) -> None:
    folder = parquet_folder({f"{number:02}.parquet": [8] for number in range(4)})
    sample = sampled(data_of(f"distant://{folder}"), store)
    produced = made(source(sample), DataWorkers(num_reads=3), ColdEpoch(LONG), least=12)
    assert (produced.num_reads, store.most_inside) == (3, 3)


def test_an_epoch_of_few_row_groups_ends_before_its_reads_are_many(
    store: type[DistantFiles], parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the eighth thread may start late.
    monkeypatch.setattr(f"{DistantFiles.__module__}.LATENCY_S", 0.2)
    folder = parquet_folder({f"{number:02}.parquet": [8] for number in range(12)})
    data = data_of(f"distant://{folder}")
    sample = sampled(data, store)
    epoch = ColdEpoch(num_blocks(data, ALONE, sample))
    # In one production: reads that the end of another one abandoned would count too.
    made(source(sample), DataWorkers(), epoch, least=24)
    assert 8 <= store.most_inside <= 12
    assert len(set(store.opened[:12])) == 12, "an epoch has every row group"


def test_a_round_goes_on_where_the_last_one_stopped(parquet_folder: Callable[..., Path]) -> None:
    sample = sampled(data_of(parquet_folder({"a.parquet": [8] * 6})))
    epoch = ColdEpoch(LONG)
    blocks = [made(source(sample), DataWorkers(), epoch, least=5).blocks for _ in range(3)]
    assert epoch.position == sum(blocks)
    chosen = ReadsInFlight(ReadBounds(start=5, least=5, most=5))
    assert made(source(sample), DataWorkers(num_reads=3), ColdEpoch(LONG, 7, chosen)).num_reads == 5


@pytest.mark.parametrize("num_groups", [2, 5])
def test_passes_are_cold_also_where_they_overlap(
    num_groups: int, store: type[DistantFiles], tmp_path: Path, parquet_folder: Callable[..., Path]
) -> None:
    folder = parquet_folder({f"{number}.parquet": [8] for number in range(num_groups)})
    caches = [DiskCache(tmp_path / f"{number}", quota_bytes=1 << 24, min_free_bytes=0) for number in range(MOST_PASSES)]
    sample = sampled(data_of(f"distant://{folder}"), store)
    produced = made(source(sample, caches), DataWorkers(), ColdEpoch(LONG), least=40)
    assert "hits" not in produced.sums
    assert produced.sums["stores"] == produced.sums["parquet_opens"] == produced.blocks >= 40
    assert store.most_inside > num_groups


def test_near_files_begin_with_few_reads(parquet_folder: Callable[..., Path]) -> None:
    sample = sampled(data_of(parquet_folder({"a.parquet": [8] * 4})))
    start = DataWorkers().for_local_files().read_bounds.start
    assert start < ReadBounds().start
    assert made(source(sample), DataWorkers(), ColdEpoch(4)).num_reads == start


HELD = threading.Event()
AT_WORK = threading.Event()


def held(batch: Any) -> Any:
    AT_WORK.set()
    HELD.wait(60)
    return {"x": batch.column("x0").to_numpy()}


def test_a_block_that_does_not_end_bounds_the_rate_and_is_left_behind(parquet_folder: Callable[..., Path]) -> None:
    HELD.clear()
    AT_WORK.clear()
    sample = sampled(data_of(parquet_folder({"a.parquet": [8] * 4}), fb.Transform(fn=held, version="1")))
    production = BlockProduction(source(sample), DataWorkers(core_share=0.01), ColdEpoch(LONG))
    production.start()
    try:
        assert AT_WORK.wait(60)
        assert not production.has_made_enough()
        produced = production.stop(within_s=0)
    finally:
        HELD.set()
    assert (produced.blocks, produced.rows) == (1, 8)
    steps = {name: produced.sums[name] for name in ("remote_read_s", "decode_s", "transform_s")}
    assert 0 < produced.seconds >= sum(steps.values()) >= steps["transform_s"] > 0
    assert produced.make_s == steps["decode_s"] + steps["transform_s"]


def broken(batch: Any) -> Any:
    raise ValueError("color")


def test_the_error_of_a_block_ends_a_production(parquet_folder: Callable[..., Path]) -> None:
    transform = fb.Transform(fn=broken, version="1")
    sample = sampled(data_of(parquet_folder({"a.parquet": [8] * 4}), transform))
    with pytest.raises(TransformFailed, match="color"):
        made(source(sample), DataWorkers(), ColdEpoch(4))


def test_a_cache_directory_that_fails_ends_a_production(tmp_path: Path, parquet_folder: Callable[..., Path]) -> None:
    sample = sampled(data_of(parquet_folder({"a.parquet": [8] * 4})))
    caches = [DiskCache(tmp_path / "cache", quota_bytes=1 << 24, min_free_bytes=0)] * MOST_PASSES
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CacheUnusable):
        made(source(sample, caches), DataWorkers(), ColdEpoch(4))


def test_blocks_of_an_epoch_are_those_of_a_rank(parquet_folder: Callable[..., Path]) -> None:
    data = data_of(parquet_folder({"a.parquet": [8] * 9}))
    sample = sampled(data)
    assert num_blocks(data, ALONE, sample[:2]) == 9
    assert num_blocks(data, World(rank=0, size=4), sample[:2]) == 3
    assert num_blocks(data, World(rank=0, size=4), sample) == 9
