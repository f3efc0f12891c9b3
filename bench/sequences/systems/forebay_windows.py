"""Forebay: `Sequences` through a disk cache and one loader. Variant "raw": without a scale.

`prepare` is the first pass, which reads the source and fills the cache. A later process opens the cached blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.sequences.setting import FUTURE, PAST, SequenceFacts, SequenceSetting
from forebay import (
    CacheSpec,
    DiskCache,
    History,
    Horizon,
    Loader,
    Manifest,
    Sequences,
    build_plan,
    scan,
)
from forebay.data.kernels.calls import load

_QUOTA_BYTES = 40 << 30

load()  # Part of the imports: the first call of a kernel imports Numba.


def facts(setting: SequenceSetting) -> SequenceFacts:
    """Facts of this variant."""
    return SequenceFacts(
        version="forebay",
        shuffled="yes: blocks over the dataset, windows within spans of 65,536 per lane; each once per epoch",
        note="bits as stored" if setting.variant == "raw" else "scaled while gathered, by statistics of the data",
    )


def prepare(setting: SequenceSetting) -> None:
    """Fill the cache, and save the manifest."""
    scan(str(setting.data)).save(setting.work / "manifest.parquet")
    assert sequences(setting).windows.num_windows == setting.windows


def batches(setting: SequenceSetting) -> Iterator[Mapping[str, Any]]:
    """Batches of one epoch after another."""
    series = sequences(setting)
    plan = build_plan(series.whole, seed=setting.seed)
    with Loader(plan, series.transform, _cache(setting), global_batch=setting.batch, epochs=1 << 20) as loader:
        while True:
            yield from loader


def sequences(setting: SequenceSetting) -> Sequences:
    """Windows of all series."""
    return Sequences(
        Manifest.load(setting.work / "manifest.parquet"),
        entity="series",
        past=History(setting.names, steps=PAST),
        future=Horizon(setting.names, steps=FUTURE),
        scale=None if setting.variant == "raw" else "standard",
        cache=_cache(setting),
    )


def _cache(setting: SequenceSetting) -> DiskCache:
    return CacheSpec(path=str(setting.work / "cache"), quota_bytes=_QUOTA_BYTES).open()
