"""Decodes columns of texts with the project's own kernel, as Arrow's dictionary arrays: each text is there once.

Texts of a dictionary need not be copied for each row, and each can get its id once. What the kernel does not know is
left to Arrow: see docs/internals/data-plane.md.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.column_chunks import Chunk, readable_chunk
from forebay.data.parquet.fetch import Pages
from forebay.data.parquet.numbers import HEADER_BYTES
from forebay.data.parquet.parquet_columns import TextColumn
from forebay.runtime.memory.arrays import empty_array

_MOST_BYTES = 1 << 30
"""The size of a dictionary comes from its page, which may be damaged: above that, Arrow reads the column."""


def decode_texts(pages: Pages) -> dict[str, pa.DictionaryArray]:
    """Decode the columns of strings and binary values by a dictionary, without nulls. Leaves out all others.

    Leaves out a column too whose texts could fill more than one array of Arrow. Decodes nothing in a process that has
    not loaded the kernels.
    """
    decoded: dict[str, pa.DictionaryArray] = {}
    rows = pages.footer.metadata.row_group(pages.index).num_rows
    for k, column in enumerate(pages.footer.columns.texts(pages.leaves)):
        chunk = readable_chunk(pages, k) if column and rows else None
        found = _decoded(column, rows, chunk) if column and chunk else None
        if column and found is not None:
            decoded[column.name] = found
    return decoded


def _decoded(column: TextColumn, rows: int, chunk: Chunk) -> pa.DictionaryArray | None:
    entries, num_bytes = kernels.find_dictionary(chunk.address, chunk.num_bytes)
    if not 0 < entries <= num_bytes <= _MOST_BYTES:
        return None
    offsets, indices = empty_array((entries + 1,), np.int32), empty_array((rows,), np.int32)
    texts = empty_array((num_bytes,), np.uint8)
    scratch = empty_array((max(num_bytes, rows * 5) + HEADER_BYTES,), np.uint8)
    facts = np.array([chunk.address, chunk.num_bytes, column.is_optional, chunk.is_snappy], np.int64)
    if not kernels.decode_texts(facts, offsets, texts, indices, scratch, np.arange(entries, dtype=np.int32)):
        return None
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    if not is_large and rows * int(np.diff(offsets).max()) >= 1 << 31:
        return None
    bounds = pa.py_buffer(offsets.astype(np.int64) if is_large else offsets)
    values = pa.Array.from_buffers(column.type, entries, [None, bounds, pa.py_buffer(texts)], 0)
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:  # no UTF-8: Arrow's error names it
        return None
    return pa.DictionaryArray.from_arrays(pa.array(indices), values, safe=False)
