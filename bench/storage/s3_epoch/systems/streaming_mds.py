"""MosaicML Streaming: `MDSWriter` to S3, read by `StreamingDataset` from there, with a local folder as its cache.

https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html
https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shard_retrieval.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import streaming
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from bench.storage.s3_epoch.setting import S3Setting, row_arrays
from bench.storage.s3_epoch.store import BUCKET


class StreamingOnS3:
    """One loader for all epochs of the process."""

    version = f"mosaicml-streaming {streaming.__version__}"

    def __init__(self, setting: S3Setting) -> None:
        os.environ["S3_ENDPOINT_URL"] = f"http://{setting.endpoint}"
        rows = StreamingDataset(
            remote=f"s3://{BUCKET}/{setting.converted}",
            local=str(setting.work / "shards"),
            shuffle=True,
            shuffle_seed=setting.seed,
            batch_size=setting.batch,
            cache_limit=setting.cache_bytes or None,
        )
        self._loader = StreamingDataLoader(rows, batch_size=setting.batch, num_workers=1, persistent_workers=True)

    def epoch(self) -> Iterator[int]:
        for batch in self._loader:
            yield len(batch["x"])


def convert(setting: S3Setting) -> None:
    """Write the MDS copy, read from the same bucket."""
    os.environ["S3_ENDPOINT_URL"] = f"http://{setting.endpoint}"
    columns = {"x": f"ndarray:float32:{setting.columns}"}
    out = (str(setting.work / "out"), f"s3://{BUCKET}/{setting.converted}")
    with MDSWriter(out=out, columns=columns, size_limit=setting.shard_bytes) as writer:
        for path in setting.paths:
            for row in row_arrays(path, setting.endpoint):
                writer.write(row)


open_system = StreamingOnS3
