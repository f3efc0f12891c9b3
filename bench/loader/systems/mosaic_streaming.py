"""MosaicML Streaming: converted to MDS, read by `StreamingDataset` through `StreamingDataLoader`.

Columns are fixed-shape `ndarray:dtype:shape` without compression. They are shuffled with the default algorithm (py1e).
The dataset receives the batch size, as its performance tuning guide requires.

https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html
https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/performance_tuning.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import streaming
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from bench.loader.rows import SCALARS, samples
from bench.loader.setting import LoaderFacts, LoaderSetting

_PREFETCH = 4


class MosaicStreaming:
    """One loader for all epochs of the process."""

    facts = LoaderFacts(
        version=f"mosaicml-streaming {streaming.__version__}",
        shuffled="shards, and rows in blocks of 262,144 (py1e)",
        packed="yes, collated row by row",
        deterministic="yes, for a given number of canonical nodes",
        note="converted to MDS first",
    )

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        self._loader: StreamingDataLoader | None = None

    def prepare(self) -> None:
        folder, kind = self._setting.converted, self._setting.kind
        if not (folder / "index.json").exists():
            first = next(samples(self._setting.files[0], kind))
            columns = {name: _encoding(name, value) for name, value in first.items()}
            with MDSWriter(out=str(folder), columns=columns, exist_ok=True) as writer:
                for path in self._setting.files:
                    for sample in samples(path, kind):
                        writer.write({n: v if n not in SCALARS else SCALARS[n](v) for n, v in sample.items()})

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002 - the dataset counts its epochs
        if self._loader is None:
            streaming.base.util.clean_stale_shared_memory()
            rows = StreamingDataset(
                local=str(self._setting.converted),
                shuffle=True,
                shuffle_seed=self._setting.seed,
                batch_size=self._setting.batch,
            )
            self._loader = StreamingDataLoader(
                rows,
                batch_size=self._setting.batch,
                num_workers=self._setting.threads,
                prefetch_factor=_PREFETCH,
                persistent_workers=True,
            )
        yield from self._loader

    def close(self) -> None:
        self._loader = None


def _encoding(name: str, value: Any) -> str:
    return np.dtype(SCALARS[name]).name if name in SCALARS else f"ndarray:{value.dtype}:{len(value)}"


open_system = MosaicStreaming
