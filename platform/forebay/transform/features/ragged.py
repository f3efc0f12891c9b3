"""Lists of different lengths, copied into one padded array."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.kernels.calls import pad
from forebay.transform.block import BlockArray

Lengths: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Offsets: TypeAlias = np.ndarray[tuple[int], np.dtype[Any]]

_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def is_list(found: pa.DataType) -> bool:
    """Whether a value of this type is a sequence of values of one type."""
    return any(kind(found) for kind in _LISTS)


def list_parts(lists: pa.Array) -> tuple[pa.Array, Offsets, Lengths]:
    """Values of this slice of lists, the start of each list among them, and its length. A null list has length 0."""
    if pa.types.is_list_view(lists.type) or pa.types.is_large_list_view(lists.type):
        # Arrow 26 casts the list view [null, [1, 2]] to the list [null, []].
        starts, lengths = lists.offsets.to_numpy(), lists.sizes.to_numpy().astype(np.int32)
    else:
        lists = pc.cast(lists, pa.large_list(lists.type.value_type))
        offsets = lists.offsets.to_numpy()
        starts, lengths = offsets[:-1], np.diff(offsets).astype(np.int32)
    if lists.null_count:
        lengths[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    # Only the values that this slice uses: a slice shares the values of the whole array.
    used = lengths > 0
    first = int(starts[used].min()) if used.any() else 0
    last = int((starts[used] + lengths[used]).max(initial=first))
    return lists.values.slice(first, last - first), starts - first, lengths


def pad_rows(out: BlockArray, values: BlockArray, starts: Offsets, lengths: Lengths) -> None:
    """Copy `lengths[i]` of `values` from `starts[i]` on into row i of `out`, and fill the rest of the row with zeros.

    `out` is C-contiguous, its dtype holds all of `values`, and no length exceeds its width.
    """
    assert out.flags.c_contiguous
    values, places = np.ascontiguousarray(values, out.dtype), np.ascontiguousarray(starts, np.int64)
    pad(out.ctypes.data, out.strides[0], values.ctypes.data, out.itemsize, places, lengths)
