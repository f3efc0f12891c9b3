"""Rows that an evaluation makes itself, as a file to score."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.storage.atomic import read_small, write_atomically, write_failed
from forebay.storage.filesystem import resolve

ROWS_AT_A_TIME = 1024


def write_once(rows: pa.Table, uri: str, what: str) -> None:
    """Write rows to a Parquet file, unless equal ones exist.

    A rewritten file would count as other data.

    Raises `WriteFailed`, which begins with `what`.
    """
    location, content = resolve(uri), io.BytesIO()
    pq.write_table(rows, content, row_group_size=ROWS_AT_A_TIME, compression="zstd")
    try:
        if location.fs.get_file_info(location.path).type and read_small(location) == content.getvalue():
            return
        if not location.is_local:
            location.fs.create_dir(location.path.rpartition("/")[0], recursive=True)
        write_atomically(uri, content.getvalue())
    except OSError as error:
        raise write_failed(what, uri, error) from error
