"""Decodes columns of lists of plain numbers with the project's own kernel, in less than half of Arrow's processor time.

What the kernel does not know is left to Arrow: see docs/internals/data-plane.md.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.column_chunks import Chunk, readable_chunk
from forebay.data.parquet.fetch import Pages
from forebay.data.parquet.numbers import HEADER_BYTES, ITEMS
from forebay.data.parquet.parquet_columns import ListColumn
from forebay.runtime.memory.arrays import empty_array

_MOST_BYTES = 1 << 30
"""The number of values comes from the footer, which may be wrong: for more memory than that, Arrow reads the pages."""


def decode_lists(pages: Pages) -> dict[str, pa.Array]:
    """Decode the columns of lists of integers and floats of 4 or 8 bytes. Leaves out those it cannot decode.

    Lists may be null, values may not. Decodes nothing in a process that has not loaded the kernels.
    """
    row_group = pages.footer.metadata.row_group(pages.index)
    decoded: dict[str, pa.Array] = {}
    for k, column in enumerate(pages.footer.columns.lists(pages.leaves)):
        chunk = readable_chunk(pages, k) if column else None
        if column and chunk:
            entries = row_group.column(pages.leaves[k]).num_values
            found = _decoded(column, row_group.num_rows, entries, chunk)
            if found is not None:
                decoded[column.name] = found
    return decoded


def _decoded(column: ListColumn, rows: int, entries: int, chunk: Chunk) -> pa.Array | None:
    size = entries * column.item_bytes
    if not 0 < size <= _MOST_BYTES:
        return None
    values, offsets = pa.py_buffer(empty_array((size,), np.uint8)), empty_array((rows + 1,), np.int32)
    scratch = empty_array((size + size // 4 + HEADER_BYTES,), np.uint8)
    table = empty_array((entries,), ITEMS[column.item_bytes])
    is_null = np.zeros(rows, np.uint8)
    marks = np.empty(3 * (entries // 8 + 18), np.uint8)
    address, num_bytes, is_snappy = chunk
    facts = (address, num_bytes, column.is_optional, is_snappy, column.level, entries, values.address)
    made = kernels.decode_lists(np.array(facts, np.int64), offsets, is_null, marks, scratch, table)
    if made < 0:
        return None
    items = pa.Array.from_buffers(column.type.value_type, made, [None, values.slice(0, made * column.item_bytes)], 0)
    bounds = pa.py_buffer(offsets.astype(np.int64) if pa.types.is_large_list(column.type) else offsets)
    nulls = int(np.count_nonzero(is_null))
    is_valid = pa.py_buffer(np.packbits(is_null == 0, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(column.type, rows, [is_valid, bounds], nulls, children=[items])
