"""Grain: its Parquet source, shuffled in windows, batched, prefetched by processes.

`ParquetIterDataset` reads row groups and hands out rows. It is sharded by file over the processes of `mp_prefetch`. Its
order is fixed, so a window shuffle is the only one possible. `batch_fn` packs.

https://google-grain.readthedocs.io/en/latest/data_sources/parquet_dataset_tutorial.html
https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import grain

from bench.loader.rows import pack_rows
from bench.loader.setting import LoaderFacts, LoaderSetting

_WINDOW_ROWS = 16_384


class GrainParquet:
    """One pipeline per epoch, each with a seed of its own."""

    facts = LoaderFacts(
        version=f"grain {version('grain')}",
        shuffled=f"rows in windows of {_WINDOW_ROWS:,} per process",
        packed="yes, batched row by row",
        deterministic="yes, for one number of processes",
        note="reads the source in every epoch, row by row",
    )

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting

    def prepare(self) -> None:
        """Do nothing: no conversion is needed."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        setting = self._setting
        rows = grain.experimental.ParquetIterDataset([str(path) for path in setting.files])
        shuffled = grain.experimental.WindowShuffleIterDataset(
            rows, window_size=_WINDOW_ROWS, seed=setting.seed + number
        )
        batches = shuffled.batch(setting.batch, batch_fn=partial(pack_rows, kind=setting.kind))
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=setting.threads, per_worker_buffer_size=4)
        iterator = iter(batches.mp_prefetch(options))
        try:
            yield from iterator
        finally:
            iterator.close()

    def close(self) -> None:
        """Do nothing: every epoch closes its own processes."""


open_system = GrainParquet
