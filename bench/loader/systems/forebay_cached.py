"""Forebay as in its tutorial: scan, plan, transform, a disk cache, one loader.

One thread decodes (the default on two cores), or, as a variant, as many as every system may use. Reading and gathering
have threads of their own. In another variant the cache has no room, so that every epoch reads and decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bench.loader.features import CITIES, KINDS, MAX_TAGS
from bench.loader.setting import LoaderFacts, LoaderSetting
from forebay import CacheSpec, Categorical, Dense, Label, Loader, Ragged, Transform, build_plan, scan
from forebay.data.cache.builders.data_workers import usable_cores
from forebay.data.cache.source import LocalCache
from forebay.data.parquet import page_kernels
from forebay.runtime.metrics import Counters

_QUOTA_BYTES = 20 << 30

# Imports count in no system's time. Forebay imports Numba and its kernels (0.55 s) at the first epoch of a process.
page_kernels.load()


class Forebay:
    """One loader for all epochs of the process."""

    facts = LoaderFacts(
        version="forebay",
        shuffled="yes: row groups over the dataset, rows in windows of 65,536 per lane",
        packed="yes",
        deterministic="yes: for any threads, cache state and number of ranks",
        note="blocks are checksummed and cached on disk; the first two batches of a cached epoch are made before it "
        "begins, five epochs in a row on one clock leave no pause for that",
    )

    def __init__(self, setting: LoaderSetting) -> None:
        manifest = scan(str(setting.data))
        plan = build_plan(manifest, seed=setting.seed)
        threads = setting.threads if setting.variant == "all cores" else 1
        share = min(1.0, threads / usable_cores())
        quota = 0 if setting.variant == "no room" else _QUOTA_BYTES
        cache = LocalCache(CacheSpec(path=str(setting.work), quota_bytes=quota, core_share=share))
        self._counters = Counters()
        self._open = partial(
            Loader, plan, _transform(setting.kind), cache, global_batch=setting.batch, counters=self._counters
        )
        self._loader = self._open()

    def prepare(self) -> None:
        """Do nothing: the first epoch fills the cache."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        assert self._loader.epoch == number, "epochs come one after the other"
        yield from self._loader

    def epochs(self, first: int, count: int) -> Iterator[Mapping[str, Any]]:
        """Several epochs of a loader that knows how many: nothing of the first is prepared when the clock starts."""
        with self._open(epoch=first, epochs=first + count) as loader:
            for _ in range(count):
                yield from loader

    def counters(self) -> dict[str, float]:
        """Counters of all epochs so far (`forebay.runtime.metrics.METRICS`)."""
        return self._counters.as_dict()

    def close(self) -> None:
        self._loader.close()


def _transform(kind: str) -> Transform:
    groups = KINDS[kind].groups
    if kind == "dense":
        return Transform(x=Dense(groups["x"]), label=Label("label"))
    return Transform(
        dense=Dense(groups["dense"]),
        ids=Dense(groups["ids"], dtype="int64"),
        tags=Ragged("tags", max_len=MAX_TAGS),
        # int64 as in every other system: all of them must hand out the same bytes.
        city=Categorical(["city"], vocabulary={"city": CITIES}, dtype="int64"),
        label=Label("label"),
    )


open_system = Forebay
