"""LanceDB 0.40: its elastic `StreamingDataset` over a table with one fixed-size list per array.

All rows are shuffled, with its defaults `read_batch_size=64` and `io_queue_depth=4`. As a variant, clumps of 1,024 rows
are, and read whole, which its documentation advises where scattered reads are slow. It hands out one row at a time: a
transform packs what is read, and a collate function stacks rows. `num_workers=0` as in its guide: its threads read and
transform. Two spawned workers took 1.3 to 1.8 times as long for the dense set.

`num_splits` must be a multiple of ranks times workers. Rows beyond a multiple of it are left out of each epoch.

https://docs.lancedb.com/training/data-loading
https://docs.lancedb.com/training/distributed-training
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lancedb.streaming import StreamingDataset
from torch.utils.data import DataLoader

from bench.loader.features import pack
from bench.loader.setting import LoaderFacts, LoaderSetting

_TABLE = "rows"
_READ_ROWS = 64
_CLUMP_ROWS = 1024
_IO_QUEUE_DEPTH = 4


class LanceStreaming:
    """One table, and one dataset per epoch, because it takes the number of its epoch when it is made."""

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        self._clump_rows = _CLUMP_ROWS if setting.variant == "clumps" else None
        self._table: Any = None
        self.facts = LoaderFacts(
            version=f"lancedb {version('lancedb')}",
            shuffled=f"clumps of {_CLUMP_ROWS:,} rows" if self._clump_rows else "all rows",
            packed="yes, collated row by row",
            deterministic="yes: for any ranks and workers that divide its splits",
            note="converted to a table of Lance first",
        )

    def prepare(self) -> None:
        database, files, kind = lancedb.connect(str(self._setting.converted)), self._setting.files, self._setting.kind
        try:
            self._table = database.open_table(_TABLE)
        except ValueError:  # It is not there.
            schema = _record_batch(pack(pq.ParquetFile(files[0]).read_row_group(0), kind)).schema
            batches = (
                _record_batch(pack(file.read_row_group(index), kind))
                for file in map(pq.ParquetFile, files)
                for index in range(file.num_row_groups)
            )
            self._table = database.create_table(_TABLE, data=pa.RecordBatchReader.from_batches(schema, batches))

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        rows = StreamingDataset(
            self._table,
            num_splits=self._setting.threads,
            shuffle_seed=self._setting.seed,
            epoch=number,
            read_batch_size=self._clump_rows or _READ_ROWS,
            io_queue_depth=_IO_QUEUE_DEPTH,
            shuffle_clump_size=self._clump_rows,
            transform=_rows,
            transform_parallelism=self._setting.threads,
        )
        yield from DataLoader(rows, batch_size=self._setting.batch, collate_fn=_stack)

    def close(self) -> None:
        self._table = None


def _record_batch(arrays: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: _column(array) for name, array in arrays.items()})


def _column(array: np.ndarray) -> pa.Array:
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])


def _rows(batch: pa.RecordBatch) -> list[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """Rows of a batch: names, shared by all, and one value or array of each."""
    names = tuple(batch.schema.names)
    return [(names, values) for values in zip(*map(_array, batch.columns), strict=True)]


def _array(column: pa.Array) -> np.ndarray:
    if not pa.types.is_fixed_size_list(column.type):
        return column.to_numpy(zero_copy_only=False)
    return column.flatten().to_numpy().reshape(len(column), -1)


def _stack(rows: Sequence[tuple[tuple[str, ...], tuple[Any, ...]]]) -> dict[str, np.ndarray]:
    columns = zip(*(values for _, values in rows), strict=True)
    return {name: np.stack(column) for name, column in zip(rows[0][0], columns, strict=True)}


open_system = LanceStreaming
