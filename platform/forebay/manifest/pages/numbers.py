"""Decodes columns of plain numbers with the project's own kernel, in about a third of Arrow's processor time.

What the kernel does not know is left to Arrow: see docs/adr/0083-own-decoder-of-numbers.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.kernels import calls as kernels
from forebay.manifest.columns.parquet_columns import NumberColumn
from forebay.manifest.pages.fetch import Pages

ITEMS: dict[int, type[np.int32 | np.int64]] = {4: np.int32, 8: np.int64}
"""The kernel copies bits, so any type of that size works."""
UNCOMPRESSED, SNAPPY = 0, 1
"""Parquet's numbers of codecs."""
_ALIGN = 64
HEADER_BYTES = 4096
"""Room for the parts of a page that are no values: levels, heads of runs."""


class _Chunks(NamedTuple):
    """Column chunks that the kernel may decode: their columns, and (address, bytes, is optional, is by Snappy) each."""

    columns: tuple[NumberColumn, ...]
    places: NDArray[np.int64]


def decode_numbers(pages: Pages) -> dict[str, pa.Array]:
    """Decode the columns of integers and floats of 4 or 8 bytes that have no nulls. Leaves out those it cannot decode.

    Decodes nothing in a process that has not loaded the kernels: loading takes longer than a few row groups do.
    """
    footer = pages.footer
    rows = footer.metadata.row_group(pages.index).num_rows
    if not rows or footer.codecs is None:
        return {}
    columns, codecs = footer.columns.numbers(pages.leaves), footer.codecs[pages.index, pages.leaves]
    addresses = pages.file.addresses(pages.places)
    is_known = ((codecs == UNCOMPRESSED) | (codecs == SNAPPY)) & (addresses > 0)
    sizes = pages.places[:, 1] - pages.places[:, 0]
    decoded: dict[str, pa.Array] = {}
    for item_bytes in ITEMS:
        chosen = [k for k, column in enumerate(columns) if column and column.item_bytes == item_bytes and is_known[k]]
        found = tuple(column for k in chosen if (column := columns[k]))
        is_optional = np.array([column.is_optional for column in found], np.int64)
        places = np.stack([addresses[chosen], sizes[chosen], is_optional, codecs[chosen] == SNAPPY], axis=1)
        decoded |= _decoded(_Chunks(found, places), rows, item_bytes)
    return decoded


def _decoded(chunks: _Chunks, rows: int, item_bytes: int) -> dict[str, pa.Array]:
    if not chunks.columns:
        return {}
    size = rows * item_bytes
    stride = -(-size // _ALIGN) * _ALIGN
    # Of Arrow's pool: fresh memory of the system costs a page fault every 4 KiB.
    target = pa.allocate_buffer(stride * len(chunks.columns))
    scratch = np.empty(size + size // 4 + HEADER_BYTES, np.uint8)
    table = np.empty(rows, np.int32) if item_bytes == 4 else np.empty(rows, np.int64)
    targets = np.array([rows, target.address, stride], np.int64)
    is_decoded = kernels.decode_columns(chunks.places, targets, scratch, table)
    return {
        column.name: pa.Array.from_buffers(column.type, rows, [None, target.slice(k * stride, size)], 0)
        for k, column in enumerate(chunks.columns)
        if is_decoded[k]
    }
