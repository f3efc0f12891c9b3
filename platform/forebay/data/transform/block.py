"""Transformed row group: named arrays of equal length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from forebay.errors import RowCountChanged, TransformFailed

BlockArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
ArraySchema: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]

_DTYPES = frozenset(
    ("bool", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)), "float16", "float32", "float64")
)


ATTACHED = "@"
"""First character of the name of an attached array, which may have any length: steps of sequences, values of lists.

No array of a user's transform has such a name, so a block needs no second kind of arrays: caches, peers and checksums
treat all of them alike.
"""


def fits_rows(name: str, length: int, rows: int) -> bool:
    """Whether array `name` may have `length` entries.

    The block has `rows` rows.
    """
    return length == rows or name.startswith(ATTACHED)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Named arrays of a transformed row group.

    C-contiguous, in native byte order. Each has shape [rows, ...] and a dtype of kind b, i, u or f. Attached arrays
    (`ATTACHED`) have lengths of their own.

    The constructor does not check its arguments (a cache maps blocks that it wrote itself). `Block.of` checks them.
    `owner` keeps the memory of the arrays alive, such as a memory map.
    """

    rows: int
    arrays: Mapping[str, BlockArray]
    owner: object = None

    @classmethod
    def of(cls, arrays: Mapping[str, object], rows: int | None = None) -> Block:
        """Check `arrays`, and create a block.

        Copies arrays that are not contiguous or not in native byte order. Raises `TransformFailed` without arrays, and
        for objects, strings, dates or complex numbers. Raises `RowCountChanged` if the first length of an array is not
        `rows` (by default the first array's length).
        """
        if not arrays:
            raise TransformFailed("A block needs at least one array, none was given. Return {name: array, ...}.")
        checked = {_array_name(name): _plain_array(name, array) for name, array in arrays.items()}
        expected = len(next(iter(checked.values()))) if rows is None else rows
        for name, array in checked.items():
            if len(array) != expected:
                raise RowCountChanged(
                    f"Array {name!r} has {len(array)} rows where the row group has {expected}. A transform must keep "
                    "every row, in order: leave rows out before, by fb.scan(where=...) or by manifest.keep("
                    "transform).",
                    array=name,
                    rows=len(array),
                    expected=expected,
                )
        return cls(expected, checked)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def has_rows(self, rows: int) -> bool:
        """Whether the block and all arrays have `rows` rows."""
        return self.rows == rows and all(fits_rows(name, len(array), rows) for name, array in self.arrays.items())

    @property
    def schema(self) -> ArraySchema:
        """(name, dtype, trailing shape) of every array, in order."""
        return tuple((name, str(array.dtype), array.shape[1:]) for name, array in self.arrays.items())


def _array_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TransformFailed(f"An array is named {name!r}. Names of arrays are non-empty strings.", array=name)
    if name.startswith(ATTACHED):
        raise TransformFailed(
            f"An array is named {name!r}. Names with {ATTACHED!r} are reserved: rename it.", array=name
        )
    return name


def _plain_array(name: str, value: object) -> BlockArray:
    # A masked array would silently lose its mask, a list would silently choose a dtype.
    if isinstance(value, np.ma.MaskedArray) or not hasattr(value, "__array__"):
        raise TransformFailed(
            f"Array {name!r} is a {type(value).__name__}. Return a NumPy array without a mask.",
            array=name,
            found=type(value).__name__,
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TransformFailed(
            f"Array {name!r} is a {type(value).__name__} that NumPy cannot hold ({error}). Return a NumPy array, such "
            "as tensor.detach().float().cpu().numpy().",
            array=name,
            found=type(value).__name__,
        ) from error
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if str(array.dtype) not in _DTYPES:
        raise TransformFailed(
            f"Array {name!r} has dtype {array.dtype}, which no tensor can hold. Return bool, integers or floats up to "
            "64 bits; turn strings into ids and times into integers.",
            array=name,
            dtype=str(array.dtype),
        )
    if array.ndim == 0 or 0 in array.shape[1:]:
        raise TransformFailed(
            f"Array {name!r} has shape {array.shape}, so its rows hold nothing. Return [rows] or [rows, n].",
            array=name,
            shape=array.shape,
        )
    return np.ascontiguousarray(array)
