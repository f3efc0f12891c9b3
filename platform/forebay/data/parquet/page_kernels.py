"""Calls of the compiled decoders of pages and footers.

The first call of any loads all of them.

As in `kernels/calls.py`: a process that reads no row group never imports Numba.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.data.kernels.calls import Ints


class PageKernels(NamedTuple):
    """Modules of compiled functions."""

    list_pages: ModuleType
    page_headers: ModuleType
    pages: ModuleType


@cache
def load() -> PageKernels:
    """Load all kernels.

    Call it before other threads start: a process forked during the first call deadlocks.
    """
    from forebay.data.parquet import list_pages, page_headers, pages  # noqa: PLC0415

    return PageKernels(list_pages, page_headers, pages)


def is_loaded() -> bool:
    """Whether this process has loaded them."""
    return load.cache_info().currsize > 0


def decode_columns(
    chunks: Ints, into: Ints, scratch: NDArray[np.uint8], table: NDArray[np.int32] | Ints
) -> NDArray[np.bool_]:
    """Decode Parquet column chunks of numbers.

    `chunks[k]` is (address, bytes, whether it may have nulls, whether Snappy compressed it). `into` is (rows of each,
    address where the first is decoded to, bytes from there to the next). `scratch` holds a page, `table` a dictionary;
    its items are as large as the numbers. Returns which chunks were decoded. Others have nulls, checksums, an unknown
    encoding or damage: Arrow must read them.
    """
    is_decoded = np.zeros(len(chunks), np.bool_)
    load().pages.decode_columns(chunks, into, scratch, table, is_decoded)
    return is_decoded


def decode_lists(
    chunk: Ints,
    offsets: NDArray[np.int32],
    is_null: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    scratch: NDArray[np.uint8],
    table: NDArray[np.int32] | Ints,
) -> int:
    """Decode a Parquet column chunk of lists.

    Returns the number of its values, or -1 if it did not decode it.

    `chunk` is (address, bytes, whether lists may be null, whether Snappy compressed it, definition level of a value,
    entries, address that the values are decoded to). Entries are the values, and the lists without any; there must be
    room for as many values. Writes `offsets` [rows + 1] of the lists among the values, and which lists are null, to
    `is_null` [rows]. `marks` [at least 54 + 3 / 8 * entries] and `scratch` hold a page, `table` a dictionary; its items
    are as large as the numbers. Arrow must read what it does not decode, such as nulls within lists.
    """
    found: int = load().list_pages.decode_lists(chunk, offsets, is_null, marks, scratch, table)
    return found


def find_dictionary(address: int, num_bytes: int) -> tuple[int, int]:
    """Entries and bytes of a column chunk's dictionary.

    The chunk holds texts. Zeros without a dictionary.
    """
    found: tuple[int, int] = load().pages.find_dictionary(address, address + num_bytes)
    return found


def decode_texts(
    chunk: Ints,
    offsets: NDArray[np.int32],
    texts: NDArray[np.uint8],
    indices: NDArray[np.int32],
    scratch: NDArray[np.uint8],
    numbers: NDArray[np.int32],
) -> bool:
    """Decode a Parquet column chunk of texts.

    Writes its dictionary, and `indices` [rows]. Returns whether it did.

    `chunk` is (address, bytes, whether it may have nulls, whether Snappy compressed it). Sizes of the dictionary are
    those of `find_dictionary`: its texts lie in `texts` [bytes], between the `offsets` [entries + 1]. `scratch` holds a
    page, and `numbers` are 0, 1, ... [entries]. Arrow must read what it does not decode, such as nulls and plain texts.
    """
    is_decoded: bool = load().pages.decode_texts(chunk, offsets, texts, indices, scratch, numbers)
    return is_decoded


def count_values(address: int, num_bytes: int) -> int:
    """Count the values that the pages of a column chunk state.

    -1 if a header cannot be read.
    """
    return int(load().page_headers.count_values(address, address + num_bytes))


def read_codecs(address: int, num_bytes: int, row_groups: int, columns: int) -> Ints | None:
    """Codecs in a Parquet footer, int64 [row_groups, columns].

    -1 where none is stated.

    None if the footer has another form.
    """
    codecs = np.full((row_groups, columns), -1, np.int64)
    is_read: bool = load().page_headers.read_codecs(address, address + num_bytes, codecs)
    return codecs if is_read else None
