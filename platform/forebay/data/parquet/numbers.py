"""Decodes columns of plain numbers with the project's own kernel, in about a third of Arrow's processor time.

What the kernel does not know is left to Arrow: see docs/adr/0083-own-decoder-of-numbers.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.column_chunks import SNAPPY, UNCOMPRESSED
from forebay.data.parquet.fetch import Pages
from forebay.data.parquet.number_columns import NumberColumns
from forebay.runtime.memory.arrays import empty_array

ITEMS: dict[int, type[np.int32 | np.int64]] = {4: np.int32, 8: np.int64}
"""The kernel copies bits, so any type of that size works."""
_ALIGN = 64
HEADER_BYTES = 4096
"""Room for the parts of a page that are no values: levels, heads of runs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers:
    """Decoded columns of plain numbers of a row group, in one buffer.

    `addresses` are those of the values of each of `layout.columns`, int64 [columns + 1]. 0: not decoded, as is the last
    one, which place -1 stands for. They are valid as long as `memory` is.
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
        """Column of Arrow with the memory of a decoded column. None if it was not decoded."""
        place = self.layout.place(name)
        address = int(self.addresses[place])
        if not address:
            return None
        column = self.layout.columns[place]
        values = self.memory.slice(address - self.memory.address, self.rows * column.item_bytes)
        return pa.chunked_array([pa.Array.from_buffers(column.type, self.rows, [None, values], 0)])


def decode_numbers(pages: Pages) -> Numbers:
    """Decode the columns of integers and floats of 4 or 8 bytes that have no nulls. Leaves out those it cannot decode.

    Decodes nothing in a process that has not loaded the kernels: loading takes longer than a few row groups do.
    """
    footer = pages.footer
    layout, rows = footer.columns.numbers(pages.leaves), footer.metadata.row_group(pages.index).num_rows
    addresses = np.zeros(len(layout.columns) + 1, np.int64)
    if not rows or footer.codecs is None or not layout.columns:
        return Numbers(layout=layout, rows=rows, addresses=addresses, memory=pa.py_buffer(b""))
    codecs, places = footer.codecs[pages.index, layout.leaves], pages.places[layout.chunks]
    chunks = np.empty((len(places), 4), np.int64)
    chunks[:, 0], chunks[:, 1] = pages.file.addresses(places), places[:, 1] - places[:, 0]
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
            is_decoded = _decoded(chunks[chosen], (rows, target, stride), item_bytes)
            addresses[chosen] = (target + stride * np.arange(len(chosen))) * is_decoded
            target += stride * len(chosen)
    return Numbers(layout=layout, rows=rows, addresses=addresses, memory=memory)


def _decoded(chunks: NDArray[np.int64], places: tuple[int, int, int], item_bytes: int) -> NDArray[np.bool_]:
    """Decode chunks to `places`: rows, address for the first one, and bytes to the next. Returns which it could."""
    rows = places[0]
    size = rows * item_bytes
    scratch = empty_array((size + size // 4 + HEADER_BYTES,), np.uint8)
    table = empty_array((rows,), ITEMS[item_bytes])
    return kernels.decode_columns(chunks, np.array(places, np.int64), scratch, table)
