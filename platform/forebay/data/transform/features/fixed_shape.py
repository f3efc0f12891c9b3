"""Lists of a fixed shape: vectors, matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forebay.data.parquet.decoded_table import Columns
from forebay.data.transform.block import BlockArray
from forebay.data.transform.features.columns import check_numeric, column_names, column_type, wrong_type
from forebay.data.transform.features.groups import Schema
from forebay.data.transform.features.numeric import cast_numbers, check_dtype, check_fill, fill_nulls
from forebay.data.transform.features.ragged import is_list, list_parts
from forebay.data.transform.fingerprint.values import Identity
from forebay.errors import InvalidOption, WrongType
from forebay.runtime.memory.pool import empty_array


@dataclass(frozen=True, slots=True)
class Array:
    """Lists of a fixed shape, such as embeddings or matrices.

    They have one length in all rows, also nested ones. They become array [rows, *shape] of `dtype`. `shape` is the
    shape of one row: 128 or (3, 224, 224). Takes any of Arrow's lists of numbers, nested as deep as `shape` is long. A
    null row is all `fill`, and so is a null within a list.

    Raises `WrongType` for other columns, and for a list of another length, with its row. Raises `InvalidOption` for
    an unusable shape, and for a fill that does not fit `dtype`.
    """

    column: str
    shape: int | Sequence[int]
    dtype: str = "float32"
    fill: float = 0.0

    def __post_init__(self) -> None:
        column_names("Array", [self.column])
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
            raise InvalidOption(
                f"Array(shape={self.shape!r}) is invalid. Give the shape of one row, such as 128 or (3, 4)."
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", check_dtype("Array", self.dtype))
        object.__setattr__(self, "fill", check_fill("Array", self.fill, self.dtype))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def array_names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def check(self, name: str, schema: Schema) -> None:
        feature = f"Array {name!r}"
        found = kind = column_type(feature, self.column, schema)
        if pa.types.is_null(found):
            return
        for size in self._sizes:
            if not is_list(kind) or (pa.types.is_fixed_size_list(kind) and kind.list_size != size):
                raise wrong_type(feature, self.column, found, f"It takes lists of shape {self._sizes}.")
            kind = kind.value_type
        check_numeric(feature, self.column, kind, self.dtype, f"It takes lists of numbers of shape {self._sizes}.")

    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]:
        packed = empty_array((table.num_rows, *self._sizes), self.dtype)
        packed[:] = self.fill
        start = 0
        for chunk in table[self.column].chunks:
            self._pack(name, chunk, packed[start : start + len(chunk)].reshape(-1), start)
            start += len(chunk)
        return {name: packed}

    def identity(self) -> Identity:
        return ["Array", self.column, list(self._sizes), self.dtype, repr(self.fill)]

    @property
    def _sizes(self) -> tuple[int, ...]:
        assert isinstance(self.shape, tuple)
        return self.shape

    def _pack(self, name: str, array: pa.Array, out: BlockArray, first_row: int) -> None:
        """Write values from row `first_row` on to `out`.

        `out` is flat and filled.
        """
        # Numbers of the rows at each level, in the array of the level above with the fixed sizes.
        items = np.arange(len(array), dtype=np.int64)
        for level, size in enumerate(self._sizes):
            if pa.types.is_null(array.type):
                return
            values, starts, lengths = list_parts(array)
            used = array.is_valid().to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(used & (lengths != size))
            if len(wrong):
                row = first_row + int(items[wrong[0]]) // math.prod(self._sizes[:level])
                raise WrongType(
                    f"Array {name!r} has shape {self._sizes}, but column {self.column!r} has a list of "
                    f"{int(lengths[wrong[0]])} items at level {level + 1}, in row {row} of its row group. Write lists "
                    "of one length, or use Ragged.",
                    column=self.column,
                    row=row,
                )
            inner = (np.asarray(starts, np.int64)[used, None] + np.arange(size)).reshape(-1)
            items = (items[used, None] * size + np.arange(size)).reshape(-1)
            is_whole = len(inner) == len(values) and (not len(inner) or bool((inner == np.arange(len(inner))).all()))
            array = values if is_whole else values.take(pa.array(inner))
        numbers = cast_numbers(f"Array {name!r}", self.column, array, self.dtype)
        valid = numbers.is_valid().to_numpy(zero_copy_only=False)
        filled = fill_nulls(numbers)
        out[items[valid]] = filled.to_numpy(zero_copy_only=False)[valid]
