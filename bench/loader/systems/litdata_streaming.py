"""litData: its own optimized chunks, or Parquet through its `ParquetLoader`, both through `StreamingDataLoader`.

Parquet is indexed first and read by row group (`low_memory=True`, the default) in spawned workers, as its README
requires on Linux. Chunks are written by `optimize`, 64 MB each, and decoded in windows (`batch_decode="auto"`, the
default).

https://github.com/Lightning-AI/litData#stream-parquet
https://lightning.ai/docs/litdata/features/hugging-face-compatible
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np
from litdata.streaming.item_loader import ParquetLoader

from bench.loader.rows import pack_rows, samples, stack
from bench.loader.setting import LoaderFacts, LoaderSetting

_PREFETCH = 4
_CHUNK = "64MB"


class LitData:
    """One loader for all epochs of the process."""

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        self._parquet = setting.variant == "parquet"
        self._loader: litdata.StreamingDataLoader | None = None
        self.facts = LoaderFacts(
            version=f"litdata {litdata.__version__}",
            shuffled="files, and windows of rows within each"
            if self._parquet
            else "chunks, and windows of rows within",
            packed="yes, collated row by row",
            deterministic="yes, for one number of workers",
            note="reads Parquet row by row" if self._parquet else "converted to its chunks first",
        )

    def prepare(self) -> None:
        setting = self._setting
        if (setting.converted / "index.json").exists():
            return
        if self._parquet:
            setting.converted.mkdir(parents=True, exist_ok=True)
            for path in setting.files:  # Links: litData keeps its own files beside the data and may delete some.
                os.link(path, setting.converted / path.name)
            litdata.index_parquet_dataset(str(setting.converted), num_workers=setting.threads)
        else:
            litdata.optimize(
                partial(optimized_rows, kind=setting.kind),
                inputs=[str(path) for path in setting.files],
                output_dir=str(setting.converted),
                chunk_bytes=_CHUNK,
                num_workers=setting.threads,
                verbose=False,
            )

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002 - the loader counts its epochs
        if self._loader is None:
            self._loader = self._new_loader()
        yield from self._loader

    def close(self) -> None:
        self._loader = None

    def _new_loader(self) -> litdata.StreamingDataLoader:
        setting, workers = self._setting, {}
        if self._parquet:
            rows = litdata.StreamingDataset(
                str(setting.converted),
                item_loader=ParquetLoader(),
                shuffle=True,
                seed=setting.seed,
            )
            workers = {"multiprocessing_context": "spawn", "collate_fn": partial(pack_rows, kind=setting.kind)}
        else:
            rows = litdata.StreamingDataset(str(setting.converted), shuffle=True, seed=setting.seed)
            workers = {"collate_fn": stack}
        return litdata.StreamingDataLoader(
            rows,
            batch_size=setting.batch,
            num_workers=setting.threads,
            prefetch_factor=_PREFETCH,
            persistent_workers=True,
            **workers,
        )


def optimized_rows(path: str, kind: str) -> Iterator[dict[str, np.ndarray]]:
    yield from samples(Path(path), kind)


open_system = LitData
