"""Hugging Face datasets 5.2: Parquet streamed, or converted to Arrow files once and memory-mapped (map-style).

Every variant hands out whole batches as Arrow tables, its fastest path. Streamed by 2 workers of a `DataLoader`, the
dense set brings 880,000 rows/s with the format "arrow", 810,000 with "torch", and 4,000 by `.iter()` with "torch" or
"numpy".

- streaming: `.batch()` in `DataLoader` workers without automatic batching; shards, here files, go to the workers.
- streaming, local shuffle: files, and rows in a buffer of 65,536.
- map-style: in file order, by `Dataset.iter`; a worker would only copy what is mapped.
- map-style, shuffled: random indices by a `BatchSampler`, in workers.
- map-style, local shuffle: as `to_iterable_dataset`, which the documentation advises for speed: 64 shards shuffled, and
  rows in a buffer of 65,536.

https://huggingface.co/docs/datasets/use_with_pytorch
https://huggingface.co/docs/datasets/about_mapstyle_vs_iterable
https://huggingface.co/docs/datasets/stream
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from bench.loader.features import pack
from bench.loader.setting import LoaderFacts, LoaderSetting

os.environ["HF_DATASETS_OFFLINE"] = "1"  # Before the import: everything is local.
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

import datasets

_PREFETCH = 4
_SHUFFLE_ROWS = 65_536
_SHARDS = 64
_SHUFFLED = {
    "": "no",
    "shuffle": f"files, and rows in a buffer of {_SHUFFLE_ROWS:,}",
    "map": "no",
    "map shuffled": "all rows",
    "map shuffle": f"shards, and rows in a buffer of {_SHUFFLE_ROWS:,}",
}


class HFDatasets:
    """One dataset, and one loader where it has workers, for all epochs of the process."""

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        self._is_mapped = setting.variant.startswith("map")
        self._rows: Any = None
        self._loader: DataLoader[Any] | None = None
        self.facts = LoaderFacts(
            version=f"datasets {datasets.__version__}",
            shuffled=_SHUFFLED[setting.variant],
            packed="yes, by a collate function",
            deterministic="yes, in one process" if setting.variant == "map" else "yes, for one number of workers",
            note="converted to Arrow files first" if self._is_mapped else "reads the source in every epoch",
        )

    def prepare(self) -> None:
        """Convert to Arrow files if the variant is map-style, and build the loader."""
        setting = self._setting
        self._rows = datasets.load_dataset(
            "parquet",
            data_files=[str(path) for path in setting.files],
            split="train",
            streaming=not self._is_mapped,
            cache_dir=str(setting.converted),
        ).with_format("arrow")
        if setting.variant == "map":
            return
        collate, sampler = _PackTable(setting.kind), None
        if setting.variant == "map shuffled":
            generator = torch.Generator().manual_seed(setting.seed)
            sampler = BatchSampler(RandomSampler(self._rows, generator=generator), setting.batch, drop_last=False)
        else:
            collate = _PackBatched(setting.kind)
            if self._is_mapped:
                self._rows = self._rows.to_iterable_dataset(num_shards=min(_SHARDS, setting.num_rows))
            if setting.variant:
                self._rows = self._rows.shuffle(seed=setting.seed, buffer_size=_SHUFFLE_ROWS)
            self._rows = self._rows.batch(setting.batch)
        self._loader = DataLoader(
            self._rows,
            batch_size=None,
            sampler=sampler,
            collate_fn=collate,
            num_workers=setting.threads,
            prefetch_factor=_PREFETCH,
            persistent_workers=True,
        )

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        if self._loader is None:
            yield from map(_PackTable(self._setting.kind), self._rows.iter(self._setting.batch))
            return
        if self._setting.variant in {"shuffle", "map shuffle"}:  # `set_epoch` alone would shuffle the files.
            self._rows.set_epoch(number)
        yield from self._loader

    def close(self) -> None:
        self._loader = None


class _PackTable:
    """Pack an Arrow table with one row per row."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, batch: pa.Table) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(array) for name, array in pack(batch, self._kind).items()}


class _PackBatched(_PackTable):
    """Pack the table that `.batch()` makes: one row, whose columns are lists of all rows of the batch."""

    def __call__(self, batch: pa.Table) -> dict[str, torch.Tensor]:
        columns = zip(batch.column_names, batch.columns, strict=True)
        return super().__call__(pa.table({name: column.combine_chunks().flatten() for name, column in columns}))


open_system = HFDatasets
