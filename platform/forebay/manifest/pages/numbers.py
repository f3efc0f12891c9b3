"""Decodes columns of plain numbers with the project's own kernel, in about a third of Arrow's processor time.

What the kernel does not know is left to Arrow: see docs/adr/0083-own-decoder-of-numbers.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from forebay.kernels import calls as kernels
from forebay.manifest.columns.parquet_columns import NumberColumn
from forebay.manifest.pages.fetch import Pages

_ITEMS: dict[int, type[np.int32 | np.int64]] = {4: np.int32, 8: np.int64}
"""The kernel copies bits, so any type of that size works."""
_UNCOMPRESSED, _SNAPPY = 0, 1
"""Parquet's numbers of codecs."""
_ALIGN = 64
_HEADER_BYTES = 4096
"""What a page may hold besides its values: levels, heads of runs."""


class _Chunk(NamedTuple):
    """Column chunk that the kernel may decode: its column, memory, and whether Snappy compressed it."""

    column: NumberColumn
    memory: pa.Buffer
    is_snappy: bool


def decode_numbers(pages: Pages) -> dict[str, pa.ChunkedArray]:
    """Decode the columns of integers and floats of 4 or 8 bytes that have no nulls. Leaves out those it cannot decode.

    Decodes nothing in a process that has not loaded the kernels: loading takes longer than a few row groups do.
    """
    footer = pages.footer
    rows = footer.metadata.row_group(pages.index).num_rows
    if not rows or footer.codecs is None:
        return {}
    chunks = list(_chunks(pages, footer.columns.numbers, footer.codecs[pages.index].tolist()))
    decoded: dict[str, pa.ChunkedArray] = {}
    for item_bytes in _ITEMS:
        decoded |= _decoded([chunk for chunk in chunks if chunk.column.item_bytes == item_bytes], rows, item_bytes)
    return decoded


def _chunks(pages: Pages, numbers: Mapping[int, NumberColumn], codecs: Sequence[int]) -> Iterator[_Chunk]:
    for leaf, place in pages.chunks.items():
        column, codec = numbers.get(leaf), codecs[leaf]
        if column is not None and codec in (_UNCOMPRESSED, _SNAPPY):
            memory = pages.file.part(*place)
            if memory is not None:
                yield _Chunk(column, pa.py_buffer(memory), codec == _SNAPPY)


def _decoded(chunks: list[_Chunk], rows: int, item_bytes: int) -> dict[str, pa.ChunkedArray]:
    if not chunks:
        return {}
    size = rows * item_bytes
    stride = -(-size // _ALIGN) * _ALIGN
    # Of Arrow's pool: fresh memory of the system costs a page fault every 4 KiB.
    target = pa.allocate_buffer(stride * len(chunks))
    places = np.array(
        [(chunk.memory.address, chunk.memory.size, chunk.column.is_optional, chunk.is_snappy) for chunk in chunks],
        np.int64,
    )
    scratch = np.empty(size + size // 4 + _HEADER_BYTES, np.uint8)
    table = np.empty(rows, np.int32) if item_bytes == 4 else np.empty(rows, np.int64)
    targets = np.array([rows, target.address, stride], np.int64)
    is_decoded = kernels.decode_columns(places, targets, scratch, table)
    arrays = [
        pa.Array.from_buffers(chunk.column.type, rows, [None, target.slice(k * stride, size)], 0)
        for k, chunk in enumerate(chunks)
    ]
    return {chunks[k].column.name: pa.chunked_array([arrays[k]]) for k in np.flatnonzero(is_decoded)}
