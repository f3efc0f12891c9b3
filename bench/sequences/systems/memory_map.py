"""NumPy memory map and PyTorch's `DataLoader`, as its users write it by hand.

One pass makes statistics, and one writes the scaled values into one flat float32 file. An index of series with
cumulative counts finds a window. Each worker opens the map itself. Four workers make ten batches ahead each.

Variants: "scaled" keeps the file unscaled and scales each window, so that statistics can be of the training part alone.
"replacement" draws windows with replacement, because a permutation of 10^9 windows does not fit into memory.

https://docs.pytorch.org/docs/stable/data.html#map-style-datasets
https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.RandomSampler
https://numpy.org/doc/stable/reference/generated/numpy.memmap.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from bench.sequences.setting import FUTURE, PAST, SERIES_STEPS, SequenceFacts, SequenceSetting

_CHUNK_STEPS = 100_000
_EPOCH_WINDOWS = 10_000_000


def facts(setting: SequenceSetting) -> SequenceFacts:
    """Facts of this variant."""
    drawn = "with replacement" if setting.variant == "replacement" else "without replacement, a list in memory"
    return SequenceFacts(
        version=f"NumPy {np.__version__}, torch {torch.__version__}",
        shuffled=f"yes: over all windows, {drawn}",
        note="each window scaled" if setting.variant == "scaled" else "scaled values in the file",
    )


def prepare(setting: SequenceSetting) -> None:
    """Statistics in one pass over the source, and the flat file of scaled values in another one."""
    steps = setting.series * SERIES_STEPS
    total, squares = np.zeros(setting.columns), np.zeros(setting.columns)
    for part in _chunks(setting):
        total += part.sum(axis=0, dtype=np.float64)
        squares += (part.astype(np.float64) ** 2).sum(axis=0)
    mean = total / steps
    scale = 1 / np.sqrt(squares / steps - mean**2)
    scaling = np.stack([mean, scale]).astype(np.float32)
    np.save(setting.work / "scaling.npy", scaling)
    target = np.memmap(setting.work / "values.float32", np.float32, "w+", shape=(steps, setting.columns))
    end = 0
    for part in _chunks(setting):
        target[end : end + len(part)] = (part - scaling[0]) * scaling[1]
        end += len(part)
    target.flush()


def _chunks(setting: SequenceSetting) -> Iterator[np.ndarray]:
    """Values of all steps in their order, float32 [at most 100,000, columns]."""
    for path in setting.files:
        for batch in pq.ParquetFile(path).iter_batches(_CHUNK_STEPS, columns=setting.names):
            yield np.stack([column.to_numpy() for column in batch.columns], axis=1)


def batches(setting: SequenceSetting) -> Iterator[Mapping[str, Any]]:
    """Batches of one epoch after another."""
    windows = MappedWindows(setting)
    if setting.variant == "replacement":
        drawn = RandomSampler(windows, replacement=True, num_samples=min(len(windows), _EPOCH_WINDOWS))
        order: dict[str, Any] = {"sampler": drawn}
    else:
        order = {"shuffle": True}
    loader = DataLoader(
        windows,
        batch_size=setting.batch,
        num_workers=setting.workers,
        prefetch_factor=setting.prefetch,
        persistent_workers=True,
        **order,
    )
    while True:
        for past, future in loader:
            yield {"past": past, "future": future}


class MappedWindows(Dataset):
    """Windows of all series by number. The map is opened at the first use in each worker."""

    def __init__(self, setting: SequenceSetting) -> None:
        self._path: Path = setting.flat if setting.variant == "scaled" else setting.work / "values.float32"
        self._columns = setting.columns
        self._values: np.ndarray | None = None
        self._scaling = np.load(setting.work / "scaling.npy") if setting.variant == "scaled" else None
        steps = np.full(setting.series, SERIES_STEPS)
        self._first = np.concatenate([[0], np.cumsum(steps)])
        self._counts = np.concatenate([[0], np.cumsum(steps - PAST - FUTURE + 1)])

    def __len__(self) -> int:
        return int(self._counts[-1])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._values is None:
            self._values = np.memmap(self._path, np.float32, "r").reshape(-1, self._columns)
        series = int(np.searchsorted(self._counts, index, side="right")) - 1
        start = self._first[series] + index - self._counts[series]
        steps = self._values[start : start + PAST + FUTURE]
        steps = np.array(steps) if self._scaling is None else (steps - self._scaling[0]) * self._scaling[1]
        return torch.from_numpy(steps[:PAST]), torch.from_numpy(steps[PAST:])
