"""Text data in each format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Rows = Sequence[Mapping[str, Any]]


def _jsonl(rows: Rows, path: Path) -> None:
    path.write_bytes(_lines(rows))


def _gzip(rows: Rows, path: Path) -> None:
    # Two members, as `cat a.gz b.gz` leaves them.
    half = len(rows) // 2
    path.write_bytes(gzip.compress(_lines(rows[:half])) + gzip.compress(_lines(rows[half:])))


def _zstd(rows: Rows, path: Path) -> None:
    with pa.output_stream(path, compression="zstd") as stream:
        stream.write(_lines(rows))


def _parquet(rows: Rows, path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=7)


def _arrow(rows: Rows, path: Path) -> None:
    table = pa.Table.from_pylist(list(rows))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)


def _lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


WRITERS = {".jsonl": _jsonl, ".jsonl.gz": _gzip, ".jsonl.zst": _zstd, ".parquet": _parquet, ".arrow": _arrow}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(rows, "a.jsonl") -> Path` in the format of the suffix: jsonl, jsonl.gz, jsonl.zst, parquet or arrow."""

    def call(rows: Rows, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        WRITERS[name[name.index(".") :]](rows, path)
        return path

    return call
