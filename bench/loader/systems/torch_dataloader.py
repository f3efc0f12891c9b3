"""PyTorch's `DataLoader` over an iterable Parquet dataset: worker processes that make whole batches.

The dataset shards its row groups over the workers, with automatic batching off (`batch_size=None`), as the
documentation recommends for reading bulk data. Workers stay alive between epochs and prefetch four batches each.

https://docs.pytorch.org/docs/stable/data.html#iterable-style-datasets
https://docs.pytorch.org/docs/stable/data.html#disable-automatic-batching
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from multiprocessing import Value
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.loader.features import pack
from bench.loader.setting import LoaderFacts, LoaderSetting

_PREFETCH = 4


class TorchDataLoader:
    """One loader for all epochs of the process."""

    facts = LoaderFacts(
        version=f"torch {torch.__version__}",
        shuffled="row groups, and rows within each",
        packed="yes, by our dataset",
        deterministic="yes, for one number of workers",
        note="reads the source in every epoch; each worker ends with a short batch",
    )

    def __init__(self, setting: LoaderSetting) -> None:
        self._rows = ParquetRows(setting)
        self._loader = DataLoader(
            self._rows,
            batch_size=None,
            num_workers=setting.threads,
            prefetch_factor=_PREFETCH,
            persistent_workers=True,
        )

    def prepare(self) -> None:
        """Do nothing: no conversion is needed."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        self._rows.number.value = number
        yield from self._loader

    def close(self) -> None:
        del self._loader


class ParquetRows(IterableDataset):
    """Batches of the row groups of this worker. The rest of one row group starts the next batch."""

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        # Workers that stay alive see a new epoch only through shared memory.
        self.number = Value("q", 0)
        self._tasks = [
            (path, index) for path in setting.files for index in range(pq.read_metadata(path).num_row_groups)
        ]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker, batch = get_worker_info(), self._setting.batch
        rng = np.random.default_rng([self._setting.seed, self.number.value])
        left: dict[str, np.ndarray] = {}
        for task in rng.permutation(len(self._tasks))[worker.id :: worker.num_workers]:
            path, index = self._tasks[task]
            table = pq.ParquetFile(path).read_row_group(index, use_threads=False)
            arrays = pack(table, self._setting.kind)
            order = rng.permutation(len(table))
            arrays = {name: array[order] for name, array in arrays.items()}
            if left:
                arrays = {name: np.concatenate([left[name], array]) for name, array in arrays.items()}
            whole = len(arrays["label"]) // batch * batch
            for start in range(0, whole, batch):
                yield {name: torch.from_numpy(array[start : start + batch]) for name, array in arrays.items()}
            left = {name: array[whole:] for name, array in arrays.items()}
        if left and len(left["label"]):
            yield {name: torch.from_numpy(array) for name, array in left.items()}


open_system = TorchDataLoader
