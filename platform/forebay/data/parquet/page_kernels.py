"""Calls of the compiled decoders of pages and footers.

Each is loaded at its first call.

As in `kernels/calls.py`: a process that reads no row group never imports Numba.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from forebay.data.kernels import calls
from forebay.data.kernels.calls import Ints
from forebay.data.kernels.kernel import Kernel
from forebay.data.kernels.kernel import load as load_kernels

_WORK_WORDS, _TABLE_AT = 96, 71
"""Words of working memory of a call, at least `list_pages.LIST_WORK`, and `pages.ITEM_BYTES`."""


def _headers() -> ModuleType:
    from forebay.data.parquet import page_headers  # noqa: PLC0415 - late, as in the two below: see `Kernel`

    return page_headers


def _pages() -> ModuleType:
    from forebay.data.parquet import pages  # noqa: PLC0415

    return pages


def _list_pages() -> ModuleType:
    from forebay.data.parquet import list_pages  # noqa: PLC0415

    return list_pages


_read_codecs = Kernel(_headers, "read_codecs")
_count_values = Kernel(_headers, "count_values")
_decode_columns = Kernel(_pages, "decode_columns")
_find_dictionary = Kernel(_pages, "find_dictionary")
_decode_texts = Kernel(_pages, "decode_texts")
_decode_lists = Kernel(_list_pages, "decode_lists")
_OF_ALL_JOBS = (_decode_columns, _read_codecs, *calls.OF_ALL_JOBS)
_OTHERS = (_decode_lists, _decode_texts, _find_dictionary, _count_values, *calls.ALL)
ALL = tuple(dict.fromkeys((*_OF_ALL_JOBS, *_OTHERS)))


@cache
def load() -> None:
    """Load the kernels of nearly every job, of `calls` as well.

    All others are loaded at their first call.
    """
    load_kernels(_OF_ALL_JOBS)


def load_all() -> None:
    """Load and compile every kernel."""
    load_kernels(ALL)


def is_loaded() -> bool:
    """Whether this process has loaded the kernels of `load`."""
    return _decode_columns.is_loaded


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
    _decode_columns.call(chunks, into, scratch, is_decoded, _work(table))
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
    found: int = _decode_lists.call(chunk, offsets, is_null, marks, scratch, _work(table))
    return found


def find_dictionary(address: int, num_bytes: int) -> tuple[int, int]:
    """Entries and bytes of a column chunk's dictionary.

    The chunk holds texts. Zeros without a dictionary.
    """
    found: tuple[int, int] = _find_dictionary.call(address, address + num_bytes, _work())
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
    is_decoded: bool = _decode_texts.call(chunk, offsets, texts, indices, scratch, _work(numbers))
    return is_decoded


def count_values(address: int, num_bytes: int) -> int:
    """Count the values that the pages of a column chunk state.

    -1 if a header cannot be read.
    """
    return int(_count_values.call(address, address + num_bytes, _work()))


def read_codecs(address: int, num_bytes: int, row_groups: int, columns: int) -> Ints | None:
    """Codecs in a Parquet footer, int64 [row_groups, columns].

    -1 where none is stated.

    None if the footer has another form.
    """
    codecs = np.full((row_groups, columns), -1, np.int64)
    is_read: bool = _read_codecs.call(address, address + num_bytes, codecs, _work())
    return codecs if is_read else None


def _work(table: NDArray[np.int32] | Ints | None = None) -> Ints:
    work = np.zeros(_WORK_WORDS, np.int64)
    if table is not None:
        work[_TABLE_AT : _TABLE_AT + 3] = table.itemsize, table.ctypes.data, table.nbytes
    return work
