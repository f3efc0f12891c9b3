"""litData: a `CombinedStreamingDataset` with weights over its own optimized chunks.

It draws the dataset of each row at random, and an epoch ends when the first dataset does.

https://github.com/Lightning-AI/litData#combine-datasets
https://github.com/Lightning-AI/litData#pause--resume-data-streaming
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import litdata

from bench.mixture.setting import WEIGHTS, MixedBatch, MixtureSetting, Sample, samples

_PREFETCH = 4


class CombinedLitData:
    """One loader for all epochs of the process."""

    version = f"litdata {litdata.__version__}"

    def __init__(self, setting: MixtureSetting) -> None:
        self._setting = setting

    def prepare(self) -> None:
        for name in WEIGHTS:
            folder = self._setting.converted / name
            if not (folder / "index.json").exists():
                inputs = [str(path) for path in self._setting.files(name)]
                litdata.optimize(optimized_rows, inputs, str(folder), chunk_bytes="64MB", num_workers=1, verbose=False)

    def batches(self, state: Any | None) -> Iterator[MixedBatch]:
        setting = self._setting
        parts = [
            litdata.StreamingDataset(str(setting.converted / name), shuffle=True, seed=setting.seed) for name in WEIGHTS
        ]
        rows = litdata.CombinedStreamingDataset(
            parts, seed=setting.seed, weights=list(WEIGHTS.values()), iterate_over_all=False
        )
        loader = litdata.StreamingDataLoader(
            rows, batch_size=setting.batch, num_workers=setting.threads, prefetch_factor=_PREFETCH
        )
        if state is not None:
            yielded = {int(worker): counts for worker, counts in state["num_samples_yielded"].items()}  # as JSON has it
            loader.load_state_dict(state | {"num_samples_yielded": yielded})
        for epoch in count():
            for batch in loader:
                yield MixedBatch(batch, epoch, loader.state_dict)


def optimized_rows(path: str) -> Iterator[Sample]:
    yield from samples(Path(path))


open_system = CombinedLitData
