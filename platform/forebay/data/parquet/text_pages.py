"""Compiled decoder of columns of texts.

Reads the pages of Parquet columns: texts by a dictionary, without nulls.

Gives the dictionary and the indices into it. Trusts nothing in the pages, as `pages` does. Pages of plain texts, which
follow if a dictionary became too large, are a `False` (docs/internals/data-plane.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64, njit, types, uint8
from numpy.typing import NDArray

from forebay.data.kernels.intrinsics import copy, items_at
from forebay.data.parquet.page_headers import COMPILED, HEADER, SIZE, STORED_SIZE, TYPE, VALUES, Int, Ints, read_header
from forebay.data.parquet.pages import (
    COLUMN_OPTIONS,
    DICTIONARY_PAGE,
    ENTRIES,
    IS_OPTIONAL,
    IS_SNAPPY,
    IS_TEXT,
    ROOM,
    ROWS,
    SCRATCH,
    SLACK,
    decode_column,
    open_page,
)

_SHORT = np.zeros(1, np.int32)


def _find_dictionary(at: Int, end: Int) -> tuple[Int, Int]:
    """Entries and bytes of a column chunk's dictionary.

    The chunk goes from `at` to `end`, and may begin with a dictionary. Zeros without one.
    """
    header = np.empty(HEADER, np.int64)
    at = read_header(at, end, header)
    if at == 0 or header[TYPE] != DICTIONARY_PAGE or header[VALUES] * 4 > header[SIZE]:
        return 0, 0
    return header[VALUES], header[SIZE]


def _split_texts(at: Int, end: Int, offsets: NDArray[Any], texts: NDArray[np.uint8]) -> bool:
    """Copy length-prefixed texts to `texts` without gaps.

    Writes their bounds to `offsets`.
    """
    made: Int = 0
    target = np.int64(texts.ctypes.data)
    for k in range(len(offsets) - 1):
        length = np.int64(items_at(at, _SHORT)[0]) if end - at >= 4 else -1
        if not 0 <= length <= end - at - 4:
            return False
        offsets[k] = made
        copy(target + made, at + 4, length)
        at, made = at + 4 + length, made + length
    offsets[len(offsets) - 1] = made
    return bool(at == end)


def _decode_texts(
    chunk: Ints,
    offsets: NDArray[Any],
    texts: NDArray[np.uint8],
    indices: NDArray[Any],
    scratch: NDArray[np.uint8],
    numbers: NDArray[Any],
) -> bool:
    """Decode a column chunk of texts.

    Writes a dictionary, and `indices` [rows]. Returns whether it did.

    `chunk` is (address, bytes, whether it may have nulls, whether Snappy compressed it). The dictionary has the texts
    between the `offsets` [entries + 1] of `texts`, which has room for its page. `numbers` are those of its entries.
    """
    options, header = np.zeros(COLUMN_OPTIONS, np.int64), np.empty(HEADER, np.int64)
    options[ROWS], options[SCRATCH], options[ROOM] = len(indices), scratch.ctypes.data, len(scratch) - SLACK
    options[IS_OPTIONAL], options[IS_SNAPPY], options[IS_TEXT] = chunk[2], chunk[3], 1
    end = chunk[0] + chunk[1]
    at = read_header(chunk[0], end, header)
    if at == 0 or header[TYPE] != DICTIONARY_PAGE or header[VALUES] != len(numbers) or header[SIZE] > len(texts):
        return False
    if not open_page(at, header, options, options[SCRATCH], options[ROOM]):
        return False
    options[ENTRIES] = header[VALUES]
    if len(offsets) != len(numbers) + 1 or not split_texts(
        options[SCRATCH], options[SCRATCH] + header[SIZE], offsets, texts
    ):
        return False
    return bool(decode_column(at + header[STORED_SIZE], end, options, np.int64(indices.ctypes.data), numbers))


find_dictionary = njit(types.UniTuple(int64, 2)(int64, int64), **COMPILED)(_find_dictionary)
split_texts = njit(types.boolean(int64, int64, int32[::1], uint8[::1]), **COMPILED)(_split_texts)
decode_texts = njit(types.boolean(int64[::1], int32[::1], uint8[::1], int32[::1], uint8[::1], int32[::1]), **COMPILED)(
    _decode_texts
)
