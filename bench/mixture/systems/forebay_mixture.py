"""Forebay: a mixture of plans through the loader, with a cache on disk. One process, threads that decode."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import forebay as fb
from bench.mixture.setting import WEIGHTS, WIDTH, MixedBatch, MixtureSetting


class ForebayMixture:
    """One loader for all epochs of the process."""

    version = f"forebay {version('forebay')}"

    def __init__(self, setting: MixtureSetting) -> None:
        self._setting = setting

    def prepare(self) -> None:
        """Do nothing: the cache is filled by the first epoch."""

    def batches(self, state: Any | None) -> Iterator[MixedBatch]:
        setting = self._setting
        plans = {name: fb.build_plan(fb.scan(str(setting.data / name)), seed=setting.seed) for name in WEIGHTS}
        mix = fb.Mixture(plans, WEIGHTS, rows=setting.rows)
        columns = [f"x{place}" for place in range(WIDTH)]
        transform = fb.Transform(
            x=fb.Dense(columns), id=fb.Label("id", dtype="int64"), source=fb.Label("source", dtype="int64")
        )
        cache = fb.DiskCache(setting.work, quota_bytes=4 << 30, min_free_bytes=0)
        with fb.Loader(mix, transform, cache, global_batch=setting.batch, epochs=1 << 30) as loader:
            if state is not None:
                loader.load_state_dict(state)
            while True:
                for batch in loader:
                    yield MixedBatch(batch, batch.epoch, loader.state_dict)


open_system = ForebayMixture
