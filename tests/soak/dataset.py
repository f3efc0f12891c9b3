"""A small random dataset, the options to read it with, and the expected result."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay as fb
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.disk.accounts import INDEX_BYTES
from forebay.data.cache.source import LocalSource
from forebay.runtime.metrics import Counters
from forebay.storage.retry import ReadPolicy

TAGS = 3
SHORT_WAITS = ReadPolicy(attempts=4, deadline_s=20.0, first_wait_s=0.005, max_wait_s=0.02)
CODECS = ("none", "snappy", "zstd")


@dataclass(frozen=True)
class Disk:
    """A loader's cache: `disk`, or None, filled by `workers` under `policy`."""

    disk: fb.DiskCache | None
    workers: DataWorkers
    policy: ReadPolicy

    def source(self, dataset: fb.Dataset, counters: Counters) -> LocalSource:
        return LocalSource(dataset, self.disk, counters=counters, workers=self.workers, policy=self.policy)


@dataclass(frozen=True)
class SoakSetting:
    """One dataset on disk and every option of a run over it. It can be pickled for spawned processes."""

    folder: Path
    plan: fb.Plan
    transform: fb.Transform
    first_ids: tuple[int, ...]
    ranks: int
    global_batch: int
    epoch: int
    prefetch_bytes: int
    cache: Disk
    quota: str
    warmth: str

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def dataset(self) -> fb.Dataset:
        return fb.Dataset(self.plan.manifest, self.transform)

    @property
    def disk(self) -> fb.DiskCache:
        assert self.cache.disk is not None
        return self.cache.disk

    def files(self) -> list[Path]:
        """The Parquet files, sorted."""
        return sorted(self.data.glob("*.parquet"))

    def loader(self, rank: int = 0, ranks: int | None = None, counters: Counters | None = None) -> fb.Loader:
        return fb.Loader(
            self.plan,
            self.transform,
            self.cache,
            world=fb.World(rank=rank, size=ranks or self.ranks),
            global_batch=self.global_batch,
            epoch=self.epoch,
            prefetch_bytes=self.prefetch_bytes,
            as_numpy=True,
            counters=counters,
        )

    def ids(self, epoch: int, position: int, rank: int, ranks: int) -> list[int]:
        """The ids that the plan gives to a rank in the batch at `position`."""
        rows = self.plan.batch(epoch, position, self.global_batch, fb.World(rank=rank, size=ranks))
        return (np.asarray(self.first_ids)[rows.block] + rows.row).tolist()

    def with_policy(self, policy: ReadPolicy) -> SoakSetting:
        return replace(self, cache=replace(self.cache, policy=policy))

    def with_disk(self, disk: fb.DiskCache | None) -> SoakSetting:
        return replace(self, cache=replace(self.cache, disk=disk))


def row_of(ids: np.ndarray) -> dict[str, np.ndarray]:
    """Expected content of rows, computed from their ids alone: the output of the transform."""
    lengths = (ids % (TAGS + 1))[:, None]
    places = np.arange(TAGS)
    return {
        "id": ids,
        "dense": np.stack([ids * 0.5, (ids * 7919) % 1009], axis=1).astype(np.float32),
        "tags": np.where(places < lengths, ids[:, None] * 3 + places, 0),
    }


def draw(
    rng: random.Random,
    folder: Path,
    *,
    cached: bool | None = None,
    warmth: str | None = None,
    quota: str | None = None,
    ranks: int | None = None,
    policy: ReadPolicy = SHORT_WAITS,
) -> SoakSetting:
    """Write a dataset below `folder` and draw all options that are not given."""
    groups = _write_files(rng, folder / "data")
    # The faults restore damaged files, and damage pages as a disk does: unseen by the file system.
    manifest = fb.scan(str(folder / "data")).for_copies()
    lanes = rng.randint(3, 16)
    plan = fb.build_plan(
        manifest,
        seed=rng.randrange(1 << 30),
        lanes=lanes,
        shuffle_rows=rng.choice([16, 64, 256, 1024]),
        shuffle=rng.random() < 0.9,
    )
    quota = quota or rng.choice(["enough", "enough", "short"])
    has_cache = rng.random() < 0.8 if cached is None else cached
    path = folder / "cache"
    disk = fb.DiskCache(path, quota_bytes=_quota_bytes(quota, groups), min_free_bytes=0) if has_cache else None
    setting = SoakSetting(
        folder=folder,
        plan=plan,
        transform=fb.Transform(
            id=fb.Label("id", dtype="int64"), dense=fb.Dense(["x0", "x1"]), tags=fb.Ragged("tags", max_len=TAGS)
        ),
        first_ids=tuple((np.cumsum(groups) - groups).tolist()),
        ranks=ranks or rng.randint(1, 3),
        global_batch=rng.randint(lanes, max(2 * lanes, sum(groups) // 6)),
        epoch=rng.randint(0, 3),
        prefetch_bytes=rng.choice([1, 1 << 16, 64 << 20]),
        cache=Disk(disk, DataWorkers(num_reads=rng.randint(1, 4), core_share=rng.choice([0.4, 1.0])), policy),
        quota=quota if has_cache else "no cache",
        warmth=warmth or rng.choice(["cold", "warm", "partial"]),
    )
    if disk:
        _warm(rng, setting)
    return setting


def _write_files(rng: random.Random, folder: Path) -> list[int]:
    """Write 3 to 40 row groups of 1 to 400 rows in 1 to 8 files. Returns the rows of each group."""
    most = rng.choice([5, 60, 400])
    left = [rng.randint(1, most) for _ in range(rng.randint(3, 40))]
    groups, first_id, number = list(left), 0, 0
    codec, per_file = rng.choice(CODECS), rng.randint(max(1, len(left) // 8), len(left))
    folder.mkdir(parents=True)
    while left:
        chunk, left = left[:per_file], left[per_file:]
        first_id = write_file(folder / f"part-{number:02d}.parquet", chunk, first_id, codec)
        number += 1
    return groups


def write_file(path: Path, groups: list[int], first_id: int, codec: str = "snappy") -> int:
    """Write one file whose pages carry checksums. Returns the id after its last row."""
    writer = None
    for rows in groups:
        expected = row_of(np.arange(first_id, first_id + rows))
        columns = {
            "id": expected["id"],
            "x0": expected["dense"][:, 0],
            "x1": expected["dense"][:, 1],
            "tags": [
                row[: row_id % (TAGS + 1)].tolist()
                for row, row_id in zip(expected["tags"], expected["id"], strict=True)
            ],
        }
        table = pa.table(columns, schema=SCHEMA)
        writer = writer or pq.ParquetWriter(path, SCHEMA, compression=codec, write_page_checksum=True)
        writer.write_table(table, row_group_size=rows)
        first_id += rows
    if writer:
        writer.close()
    return first_id


SCHEMA = pa.schema([("id", pa.int64()), ("x0", pa.float32()), ("x1", pa.float32()), ("tags", pa.list_(pa.int64()))])


def _quota_bytes(quota: str, groups: list[int]) -> int:
    if quota == "enough":
        return 64 << 20
    # A block file takes whole pages: room for about half of them.
    return INDEX_BYTES + sum(8192 + rows * 48 for rows in groups) // 3


def _warm(rng: random.Random, setting: SoakSetting) -> None:
    blocks = range(len(setting.plan.manifest))
    chosen = {"cold": [], "warm": list(blocks), "partial": rng.sample(blocks, len(blocks) // 2)}[setting.warmth]
    source = setting.cache.source(setting.dataset, Counters())
    try:
        for future in [source.request(block) for block in chosen]:
            future.result(timeout=30)
    finally:
        source.close()
