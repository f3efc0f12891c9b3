"""Setting of a turn of the S3 bench, and the dataset in its bucket."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from bench.storage.s3_epoch.store import BUCKET

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIATESTTEST", "AWS_SECRET_ACCESS_KEY": "key-of-the-bench"}
SOURCE = "data"


@dataclass(frozen=True)
class S3Setting:
    """Setting of one turn.

    Attributes:
        endpoint: Address of the server, `host:port`.
        work: Folder of this node for caches.
        rows: Rows of an epoch.
        columns: float32 columns.
        files: Parquet files.
        row_groups: Row groups of each file.
        shard_bytes: Bytes of a shard or chunk of a converted copy.
        converted: Prefix of the converted copy in the bucket.
        cache_bytes: Limit of the node's cache, 0 for none.
        variant: Variant of the system.
        seed: Seed of the order.
        batch: Rows per batch.
    """

    endpoint: str
    work: Path
    rows: int
    columns: int
    files: int
    row_groups: int
    shard_bytes: int
    converted: str
    cache_bytes: int = 0
    variant: str = ""
    seed: int = 7
    batch: int = 1024

    @property
    def names(self) -> list[str]:
        return [f"x{number:04}" for number in range(self.columns)]

    @property
    def paths(self) -> list[str]:
        """Paths of the Parquet files, as `pyarrow.fs` names them."""
        return [f"{BUCKET}/{SOURCE}/part-{number:05}.parquet" for number in range(self.files)]


class S3System(Protocol):
    """A loader that reads from S3. Every file in `systems/` has a function `open_system(setting) -> S3System`."""

    version: str

    def epoch(self) -> Iterator[int]:
        """Rows of each batch of the next epoch."""


def store(endpoint: str) -> fs.S3FileSystem:
    """Client of the server. Credentials come from the environment."""
    return fs.S3FileSystem(endpoint_override=endpoint, scheme="http", region="us-east-1", allow_bucket_creation=True)


def fill(setting: S3Setting) -> int:
    """Write the dataset into the bucket. Returns its bytes."""
    client, nbytes = store(setting.endpoint), 0
    client.create_dir(BUCKET)
    rows_per_file = setting.rows // setting.files
    for number, path in enumerate(setting.paths):
        values = np.random.default_rng(number).standard_normal((setting.columns, rows_per_file), np.float32)
        sink = io.BytesIO()
        table = pa.table(dict(zip(setting.names, values, strict=True)))
        pq.write_table(table, sink, row_group_size=-(-rows_per_file // setting.row_groups), use_dictionary=False)
        with client.open_output_stream(path) as stream:
            stream.write(sink.getvalue())
        nbytes += sink.tell()
    return nbytes


def row_arrays(path: str, endpoint: str) -> Iterator[dict[str, Any]]:
    """Rows of a file in the bucket, each one array: what a conversion reads."""
    with store(endpoint).open_input_file(path) as file:
        parquet = pq.ParquetFile(file)
        for index in range(parquet.num_row_groups):
            table = parquet.read_row_group(index)
            packed = np.stack([table.column(place).to_numpy() for place in range(table.num_columns)], axis=1)
            for row in packed:
                yield {"x": row}
