"""litData: `optimize` to S3 and its chunks from there, or Parquet by `ParquetLoader` after an index was made.

https://github.com/Lightning-AI/litData#stream-parquet
https://lightning.ai/docs/litdata/features/hugging-face-compatible
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import litdata
import numpy as np
from litdata.streaming import downloader
from litdata.streaming.item_loader import ParquetLoader

from bench.storage.s3_epoch.setting import SOURCE, S3Setting, row_arrays
from bench.storage.s3_epoch.store import BUCKET

# Its second client refuses http:// otherwise. S3 itself is reached by https://.
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # noqa: SLF001


def _connect(setting: S3Setting) -> None:
    os.environ |= {"AWS_ENDPOINT_URL": f"http://{setting.endpoint}", "AWS_ALLOW_HTTP": "true"}


class LitDataOnS3:
    """One loader for all epochs of the process."""

    version = f"litdata {litdata.__version__}"

    def __init__(self, setting: S3Setting) -> None:
        _connect(setting)
        options: dict[str, Any] = {}
        source = setting.converted
        if setting.variant == "parquet":
            source, options["item_loader"] = SOURCE, ParquetLoader()
        if setting.cache_bytes:
            options["max_cache_size"] = setting.cache_bytes
        rows = litdata.StreamingDataset(
            f"s3://{BUCKET}/{source}",
            cache_dir=str(setting.work / "chunks"),
            shuffle=True,
            seed=setting.seed,
            **options,
        )
        workers = {"multiprocessing_context": "spawn"} if setting.variant == "parquet" else {}
        self._loader = litdata.StreamingDataLoader(
            rows, batch_size=setting.batch, num_workers=1, persistent_workers=True, collate_fn=stacked, **workers
        )

    def epoch(self) -> Iterator[int]:
        for batch in self._loader:
            yield len(batch)


def stacked(rows: list[dict[str, Any]]) -> np.ndarray:
    """Stack rows into one matrix."""
    if "x" in rows[0]:
        return np.stack([row["x"] for row in rows])
    return np.array([list(row.values()) for row in rows], dtype=np.float32)


def convert(setting: S3Setting) -> None:
    """Write the optimized copy, or the index of the Parquet files."""
    _connect(setting)
    if setting.variant == "parquet":
        litdata.index_parquet_dataset(f"s3://{BUCKET}/{SOURCE}", num_workers=1)
        return
    litdata.optimize(
        partial(row_arrays, endpoint=setting.endpoint),
        inputs=setting.paths,
        output_dir=f"s3://{BUCKET}/{setting.converted}",
        chunk_bytes=setting.shard_bytes,
        num_workers=1,
        verbose=False,
    )


open_system = LitDataOnS3
