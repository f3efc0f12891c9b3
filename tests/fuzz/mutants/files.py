"""The Parquet files that are damaged: one table in several encodings, and the positions of their pages."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import thrift

ROWS, GROUP_ROWS = 360, 120
TRAILER_BYTES = 8

_PLAIN: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
_DELTA: dict[str, Any] = {
    "use_dictionary": False,
    "column_encoding": {
        "id": "DELTA_BINARY_PACKED",
        "small": "DELTA_BINARY_PACKED",
        "text": "DELTA_BYTE_ARRAY",
        "plain_text": "DELTA_LENGTH_BYTE_ARRAY",
        "x": "BYTE_STREAM_SPLIT",
        "y": "BYTE_STREAM_SPLIT",
    },
}
FORMS: dict[str, dict[str, Any]] = {
    "plain v1": _PLAIN,
    "plain v2": _PLAIN | {"data_page_version": "2.0"},
    "dictionary snappy v1": {"compression": "snappy"},
    "dictionary zstd v2": {"compression": "zstd", "data_page_version": "2.0"},
    "delta v1": _DELTA | {"compression": "none"},
    "delta zstd v2": _DELTA | {"compression": "zstd", "data_page_version": "2.0"},
    "plain snappy v2": _PLAIN | {"compression": "snappy", "data_page_version": "2.0"},
    "gzip v1": {"compression": "gzip"},
    "lz4 v1": _PLAIN | {"compression": "lz4"},
    "bare": _PLAIN | {"store_schema": False, "write_statistics": False},
    "indexed": {"compression": "zstd", "write_page_index": True},
}


@dataclass(frozen=True)
class Page:
    """One page: its header, and its content from `start` to `stop`."""

    group: int
    column: int
    head: int
    start: int
    stop: int
    header: thrift.Struct


@dataclass(frozen=True)
class Original:
    """A whole file. `checked` means that its pages carry checksums."""

    name: str
    checked: bool
    path: Path

    @cached_property
    def content(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def groups(self) -> list[pa.Table]:
        """Content of each row group."""
        with pq.ParquetFile(self.path) as file:
            return [file.read_row_group(number) for number in range(file.num_row_groups)]

    @cached_property
    def footer_at(self) -> int:
        return len(self.content) - TRAILER_BYTES - int.from_bytes(self.content[-8:-4], "little")

    def footer(self) -> thrift.Struct:
        """Own copy of the footer, which the caller may change."""
        return thrift.read_struct(self.content, self.footer_at)[0]

    @cached_property
    def pages(self) -> list[Page]:
        return [
            page
            for number, group in enumerate(self.footer().get(4).values)
            for column, chunk in enumerate(group.get(1).values)
            for page in self._pages_of(number, column, chunk.get(3))
        ]

    def _pages_of(self, group: int, column: int, facts: thrift.Struct) -> list[Page]:
        at = facts.get(11) or facts.get(9)
        end, pages = at + facts.get(7), []
        while at < end:
            header, start = thrift.read_struct(self.content, at)
            stop = start + header.get(3)
            pages.append(Page(group, column, at, start, stop, header))
            at = stop
        return pages


def write_all(folder: Path) -> list[Original]:
    """Write every form, with and without checksums. The bytes are the same each time."""
    originals = []
    for number, (name, options) in enumerate(FORMS.items()):
        for checked in (True, False):
            path = folder / f"{number}-{checked}.parquet"
            if not path.exists():
                pq.write_table(
                    _table(), path, row_group_size=GROUP_ROWS, data_page_size=400, write_batch_size=40,
                    write_page_checksum=checked, **options,
                )  # fmt: skip
            originals.append(Original(name, checked, path))
    return originals


def _table() -> pa.Table:
    rng, ids = np.random.default_rng(0), range(ROWS)
    start = datetime.datetime(2026, 1, 1)
    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "small": pa.array(rng.integers(-100, 100, ROWS), pa.int32()),
        "x": pa.array(rng.random(ROWS, dtype=np.float32), mask=rng.random(ROWS) < 0.2),
        "y": pa.array(rng.random(ROWS)),
        "flag": pa.array([number % 3 == 0 if number % 5 else None for number in ids]),
        "text": pa.array([f"prefix é {number % 11}" if number % 7 else None for number in ids]),
        "plain_text": pa.array([f"{number:x}" * (number % 4) for number in ids]),
        "tags": pa.array([list(range(number % 4)) if number % 6 else None for number in ids], pa.list_(pa.int64())),
        "names": pa.array([[f"n{number % 3}", None][: number % 3] for number in ids], pa.list_(pa.string())),
        "kind": pa.array([f"k{number % 5}" for number in ids]).dictionary_encode(),
        "price": pa.array([decimal.Decimal(number) / 4 for number in ids], pa.decimal128(12, 2)),
        "at": pa.array([start + datetime.timedelta(seconds=number) for number in ids], pa.timestamp("us")),
        "both": pa.array([{"a": number, "b": str(number)} if number % 4 else None for number in ids]),
        "code": pa.array([number.to_bytes(4, "big") for number in ids], pa.binary(4)),
    }
    return pa.table(columns)
