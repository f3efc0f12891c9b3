"""Grain: `IterDataset.mix` over its Parquet sources, each shuffled in windows, with worker processes.

Its counts are a formula, and it ends when the first dataset does. Each epoch has a seed of its own.

https://google-grain.readthedocs.io/en/latest/tutorials/dataset_advanced_tutorial.html
https://google-grain.readthedocs.io/en/latest/data_sources/parquet_dataset_tutorial.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import Any

import grain
import numpy as np

from bench.mixture.setting import WEIGHTS, WIDTH, MixedBatch, MixtureSetting, Sample

_WINDOW_ROWS = 16_384


class GrainMix:
    """One pipeline per epoch."""

    version = f"grain {version('grain')}"

    def __init__(self, setting: MixtureSetting) -> None:
        self._setting = setting

    def prepare(self) -> None:
        """Do nothing: no conversion is needed."""

    def batches(self, state: Any | None) -> Iterator[MixedBatch]:
        first, inner = (0, None) if state is None else (state["epoch"], state["pipeline"])
        for epoch in count(first):
            iterator = iter(self._pipeline(epoch))
            if inner is not None:
                iterator.set_state(inner)
                inner = None
            try:
                for batch in iterator:
                    yield MixedBatch(batch, epoch, partial(_state, iterator, epoch))
            finally:
                iterator.close()

    def _pipeline(self, epoch: int) -> Any:
        setting = self._setting
        parts = []
        for name in WEIGHTS:
            rows = grain.experimental.ParquetIterDataset([str(path) for path in setting.files(name)])
            parts.append(
                grain.experimental.WindowShuffleIterDataset(rows, window_size=_WINDOW_ROWS, seed=setting.seed + epoch)
            )
        mixed = grain.IterDataset.mix(parts, weights=list(WEIGHTS.values()))
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=setting.threads, per_worker_buffer_size=4)
        return mixed.batch(setting.batch, batch_fn=pack).mp_prefetch(options)


def pack(rows: list[Sample]) -> dict[str, np.ndarray]:
    """Arrays of some rows."""
    arrays = {name: np.array([row[name] for row in rows]) for name in ("id", "source")}
    x = np.array([[row[f"x{place}"] for place in range(WIDTH)] for row in rows], dtype=np.float32)
    return arrays | {"x": x}


def _state(iterator: Any, epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "pipeline": json.loads(json.dumps(iterator.get_state()))}


open_system = GrainMix
