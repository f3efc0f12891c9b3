"""Decoders of numbers, lists of numbers, and texts.

They use the project's own kernels.

Numbers take about a third of Arrow's processor time, lists less than half. Texts become Arrow's dictionary arrays: each
text is there once, need not be copied for each row, and can get its id once. What the kernels do not know is left to
Arrow: see docs/adr/0083-own-decoder-of-numbers.md and docs/internals/data-plane.md. A process that has not
loaded the kernels decodes nothing here: loading takes longer than a few row groups do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.fetch import Pages
from forebay.data.parquet.parquet_columns import ListColumn, NumberColumns, TextColumn
from forebay.runtime.memory.pool import empty_array

UNCOMPRESSED, SNAPPY = 0, 1
"""Parquet's numbers of codecs."""


class Chunk(NamedTuple):
    """A fetched column chunk.

    Its address, its bytes, and whether Snappy compressed it.
    """

    address: int
    num_bytes: int
    is_snappy: bool


def readable_chunk(pages: Pages, index: int) -> Chunk | None:
    """Fetched column chunk that the kernels can decode.

    `index` is its index. None if it was not fetched as a whole, or has another codec.

    None also in a process that has not loaded the kernels: loading takes longer than a few row groups do.
    """
    if pages.footer.codecs is None:
        return None
    codec = pages.footer.codecs[pages.index, pages.leaves[index]]
    address = int(pages.file.addresses(pages.ranges[index : index + 1])[0])
    if codec not in (UNCOMPRESSED, SNAPPY) or not address:
        return None
    start, stop = pages.ranges[index].tolist()
    return Chunk(address, stop - start, bool(codec == SNAPPY))


ITEMS: dict[int, type[np.int32 | np.int64]] = {4: np.int32, 8: np.int64}
"""The kernel copies bits, so any type of that size works."""
_ALIGN = 64
_HEADER_BYTES = 4096
"""Room for the parts of a page that are no values: levels, heads of runs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers:
    """Decoded numeric columns of a row group, in one buffer.

    `addresses` has the address of the values of each of `layout.columns`, int64 [columns + 1]. 0: not decoded, as is
    the last one, which index -1 stands for. They are valid as long as `memory` is.
    """

    layout: NumberColumns
    rows: int
    addresses: NDArray[np.int64]
    memory: pa.Buffer

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Names of the decoded columns, and their types."""
        columns, addresses = self.layout.columns, self.addresses[:-1].tolist()
        return {column.name: column.type for column, address in zip(columns, addresses, strict=True) if address}

    def column(self, name: str) -> pa.ChunkedArray | None:
        """Arrow column that shares the buffer.

        None if the column was not decoded.
        """
        index = self.layout.index(name)
        address = int(self.addresses[index])
        if not address:
            return None
        column = self.layout.columns[index]
        values = self.memory.slice(address - self.memory.address, self.rows * column.item_bytes)
        return pa.chunked_array([pa.Array.from_buffers(column.type, self.rows, [None, values], 0)])


def decode_numbers(pages: Pages) -> Numbers:
    """Decode numeric columns of 4 or 8 bytes without nulls.

    Leaves out columns that the kernel cannot decode.

    Decodes nothing in a process that has not loaded the kernels: loading takes longer than a few row groups do.
    """
    footer = pages.footer
    layout, rows = footer.columns.numbers(pages.leaves), footer.metadata.row_group(pages.index).num_rows
    addresses = np.zeros(len(layout.columns) + 1, np.int64)
    if not rows or footer.codecs is None or not layout.columns:
        return Numbers(layout=layout, rows=rows, addresses=addresses, memory=pa.py_buffer(b""))
    codecs, ranges = footer.codecs[pages.index, layout.leaves], pages.ranges[layout.chunks]
    chunks = np.empty((len(ranges), 4), np.int64)
    chunks[:, 0], chunks[:, 1] = pages.file.addresses(ranges), ranges[:, 1] - ranges[:, 0]
    chunks[:, 2], chunks[:, 3] = layout.is_optional, codecs == SNAPPY
    is_known = ((codecs == UNCOMPRESSED) | (codecs == SNAPPY)) & (chunks[:, 0] > 0)
    known = [(item_bytes, np.flatnonzero(is_known[group]) + group.start) for item_bytes, group in layout.groups]
    strides = {item_bytes: -(-rows * item_bytes // _ALIGN) * _ALIGN for item_bytes in ITEMS}
    num_bytes = sum(strides[item_bytes] * len(chosen) for item_bytes, chosen in known)
    memory = pa.py_buffer(empty_array((num_bytes,), np.uint8))
    target = memory.address
    for item_bytes, chosen in known:
        if len(chosen):
            stride = strides[item_bytes]
            is_decoded = _decoded_numbers(chunks[chosen], (rows, target, stride), item_bytes)
            addresses[chosen] = (target + stride * np.arange(len(chosen))) * is_decoded
            target += stride * len(chosen)
    return Numbers(layout=layout, rows=rows, addresses=addresses, memory=memory)


def _decoded_numbers(chunks: NDArray[np.int64], into: tuple[int, int, int], item_bytes: int) -> NDArray[np.bool_]:
    """Decode chunks into one buffer.

    `into` has the rows, the address for the first chunk, and the bytes from one to the next. Returns which were
    decoded.
    """
    rows = into[0]
    size = rows * item_bytes
    scratch = empty_array((size + size // 4 + _HEADER_BYTES,), np.uint8)
    table = empty_array((rows,), ITEMS[item_bytes])
    return kernels.decode_columns(chunks, np.array(into, np.int64), scratch, table)


_MOST_LISTS_BYTES = 1 << 30
"""The number of values comes from the footer, which may be wrong: for more memory than that, Arrow reads the pages."""


def decode_lists(pages: Pages) -> dict[str, pa.Array]:
    """Decode columns of lists of 4 or 8 byte numbers.

    Leaves out columns that the kernel cannot decode.

    Lists may be null, values may not. Decodes nothing in a process that has not loaded the kernels.
    """
    row_group = pages.footer.metadata.row_group(pages.index)
    decoded: dict[str, pa.Array] = {}
    for k, column in enumerate(pages.footer.columns.lists(pages.leaves)):
        chunk = readable_chunk(pages, k) if column else None
        if column and chunk:
            entries = row_group.column(pages.leaves[k]).num_values
            found = _decoded_lists(column, row_group.num_rows, entries, chunk)
            if found is not None:
                decoded[column.name] = found
    return decoded


def _decoded_lists(column: ListColumn, rows: int, entries: int, chunk: Chunk) -> pa.Array | None:
    size = entries * column.item_bytes
    if not 0 < size <= _MOST_LISTS_BYTES:
        return None
    values, offsets = pa.py_buffer(empty_array((size,), np.uint8)), empty_array((rows + 1,), np.int32)
    scratch = empty_array((size + size // 4 + _HEADER_BYTES,), np.uint8)
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


_MOST_TEXTS_BYTES = 1 << 30
"""The size of a dictionary comes from its page, which may be damaged: above that, Arrow reads the column."""


def decode_texts(pages: Pages) -> dict[str, pa.DictionaryArray]:
    """Decode dictionary-encoded text columns without nulls.

    Texts are strings or binary values. Leaves out all other columns.

    Leaves out a column too whose texts could fill more than one array of Arrow. Decodes nothing in a process that has
    not loaded the kernels.
    """
    decoded: dict[str, pa.DictionaryArray] = {}
    rows = pages.footer.metadata.row_group(pages.index).num_rows
    for k, column in enumerate(pages.footer.columns.texts(pages.leaves)):
        chunk = readable_chunk(pages, k) if column and rows else None
        found = _decoded_texts(column, rows, chunk) if column and chunk else None
        if column and found is not None:
            decoded[column.name] = found
    return decoded


def _decoded_texts(column: TextColumn, rows: int, chunk: Chunk) -> pa.DictionaryArray | None:
    entries, num_bytes = kernels.find_dictionary(chunk.address, chunk.num_bytes)
    if not 0 < entries <= num_bytes <= _MOST_TEXTS_BYTES:
        return None
    offsets, indices = empty_array((entries + 1,), np.int32), empty_array((rows,), np.int32)
    texts = empty_array((num_bytes,), np.uint8)
    scratch = empty_array((max(num_bytes, rows * 5) + _HEADER_BYTES,), np.uint8)
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
