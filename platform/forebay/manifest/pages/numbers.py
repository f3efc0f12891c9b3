"""Decodes columns of plain numbers with the project's own kernel, in about a third of Arrow's processor time.

What the kernel does not know is left to Arrow: see docs/adr/0083-own-decoder-of-numbers.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forebay.kernels import calls as kernels
from forebay.manifest.pages.fetch import Pages

_STORED = {4: ("INT32", "FLOAT"), 8: ("INT64", "DOUBLE")}
"""Parquet's types by the size of an item, which must be that of the Arrow type."""
_ITEMS: dict[int, type[np.int32 | np.int64]] = {4: np.int32, 8: np.int64}
"""The kernel copies bits, so any type of that size works."""
_UNCOMPRESSED, _SNAPPY = 0, 1
"""Parquet's numbers of codecs."""
_ALIGN = 64
_HEADER_BYTES = 4096
"""What a page may hold besides its values: levels, heads of runs."""


class _Chunk(NamedTuple):
    """Column chunk that the kernel may decode: memory, whether it may have nulls, whether Snappy compressed it."""

    name: str
    type: pa.DataType
    memory: pa.Buffer
    is_optional: bool
    is_snappy: bool


def decode_numbers(pages: Pages, schema: pa.Schema) -> dict[str, pa.ChunkedArray]:
    """Decode the columns of integers and floats of 4 or 8 bytes that have no nulls. Leaves out those it cannot decode.

    Decodes nothing in a process that has not loaded the kernels: loading takes longer than a few row groups do.
    """
    rows = pages.footer.row_group(pages.index).num_rows
    if not rows or pages.codecs is None:
        return {}
    chunks = list(_chunks(pages, schema, pages.codecs[pages.index]))
    decoded: dict[str, pa.ChunkedArray] = {}
    for item_bytes in _STORED:
        decoded |= _decoded([chunk for chunk in chunks if chunk.type.bit_width == 8 * item_bytes], rows, item_bytes)
    return decoded


def _chunks(pages: Pages, schema: pa.Schema, codecs: NDArray[np.int64]) -> Iterator[_Chunk]:
    for leaf, place in pages.chunks.items():
        column = pages.footer.schema.column(leaf)
        name, memory = column.path, pages.file.part(*place)
        # A dot: part of a struct, or a column that may have the same path as one.
        if column.max_repetition_level or column.max_definition_level > 1 or "." in name or memory is None:
            continue
        found = schema.get_field_index(name)  # -1 for two columns of one name
        if found < 0 or not _is_number(arrow := schema.field(found).type, column):
            continue
        if codecs[leaf] in (_UNCOMPRESSED, _SNAPPY):
            is_snappy = bool(codecs[leaf] == _SNAPPY)
            yield _Chunk(name, arrow, pa.py_buffer(memory), bool(column.max_definition_level), is_snappy)


def _is_number(arrow: pa.DataType, column: pq.ColumnSchema) -> bool:
    is_number = pa.types.is_integer(arrow) or pa.types.is_floating(arrow)
    return is_number and column.physical_type in _STORED.get(arrow.bit_width // 8, ())


def _decoded(chunks: list[_Chunk], rows: int, item_bytes: int) -> dict[str, pa.ChunkedArray]:
    if not chunks:
        return {}
    size = rows * item_bytes
    stride = -(-size // _ALIGN) * _ALIGN
    # Of Arrow's pool: fresh memory of the system costs a page fault every 4 KiB.
    target = pa.allocate_buffer(stride * len(chunks))
    places = np.array(
        [(chunk.memory.address, chunk.memory.size, chunk.is_optional, chunk.is_snappy) for chunk in chunks], np.int64
    )
    scratch = np.empty(size + size // 4 + _HEADER_BYTES, np.uint8)
    table = np.empty(rows, np.int32) if item_bytes == 4 else np.empty(rows, np.int64)
    targets = np.array([rows, target.address, stride], np.int64)
    is_decoded = kernels.decode_columns(places, targets, scratch, table)
    arrays = [
        pa.Array.from_buffers(chunk.type, rows, [None, target.slice(k * stride, size)], 0)
        for k, chunk in enumerate(chunks)
    ]
    return {chunks[k].name: pa.chunked_array([arrays[k]]) for k in np.flatnonzero(is_decoded)}
