"""Lists of different lengths: padded, or concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from forebay.data.kernels.calls import gather_lists, pad
from forebay.data.transform.block import ATTACHED, BlockArray
from forebay.errors import TransformFailed
from forebay.runtime.memory.pool import empty_array

Lengths: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Offsets: TypeAlias = np.ndarray[tuple[int], np.dtype[Any]]

LIST_VALUES = f"{ATTACHED}lists.values."
"""Prefix of an attached array of a block: the values of all lists of a feature, one list behind the other."""

LIST_OFFSETS = f"{ATTACHED}lists.offsets."
"""Prefix of an attached array of a block: bounds of the lists among those values, int32 [rows + 1]."""

_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def is_list(found: pa.DataType) -> bool:
    """Whether values of this type are lists."""
    return any(kind(found) for kind in _LISTS)


def list_parts(lists: pa.Array) -> tuple[pa.Array, Offsets, Lengths]:
    """Return the values, starts and lengths of lists.

    The values are those in use by this slice, and starts count among them. A null list has length 0.
    """
    # Without a cast: Arrow 26 gives lists of nulls too few values, and turns the list view [null, [1, 2]] into the list
    # [null, []].
    if pa.types.is_list_view(lists.type) or pa.types.is_large_list_view(lists.type):
        starts, lengths = lists.offsets.to_numpy(), lists.sizes.to_numpy().astype(np.int32)
    elif pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        starts, lengths = (lists.offset + np.arange(len(lists))) * size, np.full(len(lists), size, np.int32)
    else:
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
    """Copy lists into rows, padded with zeros.

    Row i gets `lengths[i]` of `values` from `starts[i]` on. `out` is C-contiguous, its dtype holds all of `values`, and
    no length exceeds its width.
    """
    assert out.flags.c_contiguous
    values, starts = np.ascontiguousarray(values, out.dtype), np.ascontiguousarray(starts, np.int64)
    pad(out.ctypes.data, out.strides[0], values.ctypes.data, out.itemsize, starts, lengths)


def join_lists(values: BlockArray, starts: Offsets, lengths: Lengths) -> BlockArray:
    """Concatenate lists.

    List i is `lengths[i]` of `values` from `starts[i]` on.
    """
    joined = empty_array((int(lengths.sum(dtype=np.int64)),), values.dtype)
    values = np.ascontiguousarray(values)
    lists = np.stack([values.ctypes.data + starts.astype(np.int64) * values.itemsize, lengths.astype(np.int64)])
    gather_lists(joined.ctypes.data, np.array([[values.itemsize, 0]], np.int64), lists[None])
    return joined


def concatenated(parts: Sequence[BlockArray], dtype: str) -> BlockArray:
    """Concatenate `parts`.

    An empty array of `dtype` if there are none. A single part is not copied.
    """
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def list_offsets(name: str, lengths: Lengths) -> Lengths:
    """Offsets of lists by length, int32 [n + 1].

    Raises `TransformFailed` for 2**31 values and more.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] >= 1 << 31:
        raise TransformFailed(
            f"Ragged {name!r} found {offsets[-1]} values in a row group of {len(lengths)} rows, and a block holds "
            f"fewer than {1 << 31}. Write smaller row groups, or give max_len=...",
            array=name,
            values=int(offsets[-1]),
        )
    return offsets.astype(np.int32)
