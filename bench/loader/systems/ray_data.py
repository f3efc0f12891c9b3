"""Ray Data 2.60: `read_parquet` into `iter_torch_batches`, with and without local shuffle, streamed or materialized.

Batches are packed by an `ArrowBatchCollateFn`, which avoids one NumPy array per column. Four batches are prefetched.
With the local shuffle, files are shuffled too. Every epoch runs the whole pipeline again unless the dataset is
materialized.

https://docs.ray.io/en/latest/data/performance-tips.html
https://docs.ray.io/en/latest/data/api/doc/ray.data.DataIterator.iter_torch_batches.html
https://docs.ray.io/en/latest/data/shuffling-data.html
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import ray
import torch
from ray.data.collate_fn import ArrowBatchCollateFn

from bench.loader.features import pack
from bench.loader.setting import LoaderFacts, LoaderSetting

_SHUFFLE_ROWS = 65_536
_PREFETCH = 4


class RayData:
    """One Ray cluster, and one dataset for all epochs of the process."""

    def __init__(self, setting: LoaderSetting) -> None:
        warnings.filterwarnings("ignore")
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        self._setting = setting
        self._shuffle = setting.variant == "shuffle"
        # Row numbers are compared between epochs. A file shuffle without a seed would differ between runs.
        shuffle = ray.data.FileShuffleConfig(seed=setting.seed) if self._shuffle else None
        self._data = ray.data.read_parquet([str(path) for path in setting.files], shuffle=shuffle)
        self._keep = setting.variant == "materialized"
        self.facts = LoaderFacts(
            version=f"Ray Data {ray.__version__}",
            shuffled=f"files, and rows in a buffer of {_SHUFFLE_ROWS:,}" if self._shuffle else "no",
            packed="yes, by a collate function",
            deterministic="no, unless preserve_order is set",
            note="decoded blocks stay in the object store" if self._keep else "reads the source in every epoch",
        )

    def prepare(self) -> None:
        """Do nothing: no conversion is needed."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        if self._keep and number == 0:
            self._data = self._data.materialize()
        yield from self._data.iter_torch_batches(
            batch_size=self._setting.batch,
            prefetch_batches=_PREFETCH,
            collate_fn=_Pack(self._setting.kind),
            local_shuffle_buffer_size=_SHUFFLE_ROWS if self._shuffle else None,
            local_shuffle_seed=self._setting.seed + number if self._shuffle else None,
        )

    def close(self) -> None:
        ray.shutdown()


class _Pack(ArrowBatchCollateFn):
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, batch: pa.Table) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(array) for name, array in pack(batch, self._kind).items()}


open_system = RayData
