"""petastorm 0.13.1: `make_batch_reader` with a thread pool into `BatchedDataLoader`, columns stacked here.

Its documentation calls `BatchedDataLoader` significantly faster than `DataLoader`. Shuffling within row groups
(`shuffle_rows`) costs less than its shuffling queue. `convert_early_to_numpy` moves the conversion into the workers.
The cache ("local-disk") keeps pickled row groups in diskcache. One reader serves all epochs, as the loader resets it.

https://petastorm.readthedocs.io/en/latest/api.html#module-petastorm.reader
https://petastorm.readthedocs.io/en/latest/api.html#module-petastorm.pytorch
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from petastorm import make_batch_reader
from petastorm.pytorch import BatchedDataLoader
from petastorm.transform import TransformSpec

from bench.loader.features import CITIES, KINDS, MAX_TAGS
from bench.loader.setting import LoaderFacts, LoaderSetting

warnings.filterwarnings("ignore", category=FutureWarning)
_CACHE_BYTES = 20 << 30


class Petastorm:
    """One reader and one loader for all epochs of the process."""

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        self._loader: BatchedDataLoader | None = None
        self.facts = LoaderFacts(
            version="petastorm 0.13.1",
            shuffled="row groups, and rows within each; the same order of row groups in every epoch",
            packed="stacked in the trainer's thread",
            deterministic="no, with a pool",
            note="disk cache of decoded row groups" if setting.variant == "cache" else "no cache",
        )

    def prepare(self) -> None:
        """Do nothing: no conversion is needed."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002 - the reader knows no epochs
        if self._loader is None:
            self._loader = BatchedDataLoader(self._reader(), batch_size=self._setting.batch)
        loader, self._loader = self._loader, None
        for batch in loader:
            yield _packed(batch, self._setting.kind)
        self._loader = loader  # A reader that was abandoned during an epoch cannot be reset.

    def close(self) -> None:
        if self._loader is not None:
            self._loader.reader.stop()

    def _reader(self) -> Any:
        setting, cache = self._setting, {}
        if setting.variant == "cache":
            cache = {
                "cache_type": "local-disk",
                "cache_location": str(setting.work),
                "cache_size_limit": _CACHE_BYTES,
                "cache_row_size_estimate": 600,
            }
        return make_batch_reader(
            [f"file://{path.resolve()}" for path in setting.files],
            reader_pool_type="thread",
            workers_count=setting.threads,
            shuffle_row_groups=True,
            shuffle_rows=True,
            seed=setting.seed,
            transform_spec=_transform_spec() if KINDS[setting.kind].ragged else None,
            convert_early_to_numpy=True,
            **cache,
        )


def _packed(batch: Mapping[str, torch.Tensor], kind: str) -> dict[str, torch.Tensor]:
    groups = KINDS[kind].groups
    packed = {name: torch.stack([batch[column] for column in columns], dim=1) for name, columns in groups.items()}
    alone = batch.keys() - {column for columns in groups.values() for column in columns}
    packed |= {name: batch[name] for name in sorted(alone)}
    if "city" in packed:
        packed["city"] = packed["city"][:, None]
    return packed


def _transform_spec() -> TransformSpec:
    """Transform in the workers: pad lists to one length, and encode strings, which cannot become tensors."""
    fields = [
        ("tags", np.int64, (MAX_TAGS,), False),
        ("tags_lengths", np.int32, (), False),
        ("city", np.int64, (), False),
    ]
    return TransformSpec(_encode, edit_fields=fields)


def _encode(frame: pd.DataFrame) -> pd.DataFrame:
    lengths = frame["tags"].map(len).to_numpy()
    padded = np.zeros((len(frame), MAX_TAGS), dtype=np.int64)
    padded[np.arange(MAX_TAGS) < lengths[:, None]] = np.concatenate(frame["tags"].to_numpy())
    frame["tags"] = list(padded)
    frame["tags_lengths"] = lengths.astype(np.int32)
    frame["city"] = pd.Categorical(frame["city"], categories=CITIES).codes.astype(np.int64) + 2
    return frame


open_system = Petastorm
