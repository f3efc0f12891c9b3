"""Numeric columns, cast and packed into arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.data.kernels.calls import pack_columns
from forebay.data.parquet.type_promotion import plain_type
from forebay.data.transform.block import BlockArray
from forebay.errors import InvalidOption, WrongType
from forebay.runtime.memory.pool import empty_array

NUMERIC_DTYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)

_WORDS = {4: np.int32, 8: np.int64}
"""Integer types by item size. Packing copies bits, so any type of that size works."""


def check_dtype(feature: str, dtype: object) -> str:
    """Return the name of `dtype`.

    Raises `InvalidOption` unless it is an integer or float dtype of torch.
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype
    if name not in NUMERIC_DTYPES:
        raise InvalidOption(
            f"{feature}(dtype={dtype!r}) is not known. Give one of {', '.join(NUMERIC_DTYPES)}.", dtype=dtype
        )
    return str(name)


def check_fill(feature: str, fill: Any, dtype: str) -> int | float:
    """Return `fill` as a number of `dtype`.

    A float, and an integer only if no float equals it. So the text of the result names it.

    Raises `InvalidOption` for a number that does not fit, or no number.
    """
    number: int | float | None = None
    with suppress(TypeError, ValueError, OverflowError):
        if dtype.startswith("float"):
            number = float(fill)
            with np.errstate(over="ignore"):
                fits = np.isinf(number) or not np.isinf(np.dtype(dtype).type(number))
        else:
            # Not by way of a float, which holds whole numbers to 2**53.
            number = int(fill) if int(fill) == fill else None
            fits = number is not None and np.iinfo(dtype).min <= number <= np.iinfo(dtype).max
        if number is not None and fits:
            return number if isinstance(number, int) and int(float(number)) != number else float(number)
    raise InvalidOption(f"{feature}(fill={fill!r}) does not fit {dtype}. Give a number that does.", fill=fill)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return `column` as one array.

    Copies only if it has several chunks.
    """
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def cast_numbers(feature: str, column: str, array: pa.Array, dtype: str) -> pa.Array:
    """Cast `array` to `dtype`, and keep its nulls.

    Rounds to floats. Raises `WrongType` for an integer that does not fit.
    """
    target = pa.from_numpy_dtype(np.dtype(dtype))
    if array.type == target:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_decimal(array.type):
        # Arrow 26 casts no small decimal to an integer type wider than itself.
        values = pa.float64() if dtype.startswith("float") else plain_type(array.type)
        array = pc.cast(array, values, safe=False)
    if pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.uint8())
    try:
        return pc.cast(array, target, safe=not dtype.startswith("float"))
    except pa.ArrowInvalid as error:
        raise WrongType(
            f"{feature} cannot turn column {column!r} ({array.type}) into {dtype}: {error}. Use a wider dtype.",
            column=column,
            found=str(array.type),
            dtype=dtype,
        ) from error


def address_of(array: pa.Array) -> int:
    """Address of an array's first number, of 4 or 8 bytes."""
    return int(array.buffers()[1].address + array.offset * (array.type.bit_width // 8))


def is_packed_by_address(dtype: str) -> bool:
    """Whether `pack_addresses` takes columns of `dtype`."""
    return np.dtype(dtype).itemsize in _WORDS


def pack_addresses(addresses: NDArray[np.int64], rows: int, dtype: str) -> BlockArray:
    """Interleave columns of numbers at `addresses`.

    Returns array [rows, len(addresses)] of `dtype`, row-major. Each column has `rows` values of that dtype.
    """
    packed = empty_array((rows, len(addresses)), dtype)
    words = packed.reshape(-1).view(_WORDS[packed.itemsize])
    pack_columns(addresses.view(np.uint64), rows, words)
    return packed


def fill_nulls(numbers: pa.Array, fill: float = 0) -> pa.Array:
    """Replace nulls by `fill`.

    Returns the same array if it has none, of which Arrow would copy all values.
    """
    if not numbers.null_count:
        return numbers
    if pa.types.is_integer(numbers.type):
        return pc.fill_null(numbers, pa.scalar(int(fill), numbers.type))
    return pc.fill_null(numbers, pa.scalar(float(fill), pa.float64()).cast(numbers.type))


def pack_rows(arrays: Sequence[pa.Array], dtype: str) -> BlockArray:
    """Interleave columns of numbers.

    Returns array [rows, len(arrays)] of `dtype`, row-major. The inputs must have that type and no nulls.
    """
    rows, item = len(arrays[0]), np.dtype(dtype)
    packed: BlockArray
    if rows == 0:
        return np.empty((0, len(arrays)), dtype)
    if item.itemsize in _WORDS:
        return pack_addresses(np.array([address_of(array) for array in arrays], np.int64), rows, dtype)
    # Interleaves 4-5 times faster than `np.stack(..., axis=1)`.
    batch = pa.RecordBatch.from_arrays(list(arrays), names=[str(i) for i in range(len(arrays))])
    packed = batch.to_tensor(row_major=True).to_numpy()
    return packed
