"""Strings and binary values as bytes, unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.parquet.decoded_table import Columns
from forebay.data.transform.block import BlockArray
from forebay.data.transform.features.categories import is_text, value_type
from forebay.data.transform.features.columns import column_names, column_type, wrong_type
from forebay.data.transform.features.groups import Schema
from forebay.data.transform.features.ragged import list_parts, pad_rows
from forebay.data.transform.fingerprint.values import Identity
from forebay.errors import InvalidOption
from forebay.runtime.memory.pool import empty_array


@dataclass(frozen=True, slots=True)
class Bytes:
    """Strings or binary values as bytes, unchanged.

    Strings as UTF-8. They become array NAME [rows, max_len] of uint8, padded with 0, and array NAME_lengths [rows] of
    int32. A null has length -1. For what a model does not compute with: keys of predictions, names, encoded images.
    `unpack` gives the values back.

    Nothing is cut: raises `InvalidOption` for a value of more than `max_len` bytes, and `WrongType` for other columns.
    """

    column: str
    max_len: int

    def __post_init__(self) -> None:
        column_names("Bytes", [self.column])
        if not isinstance(self.max_len, int) or self.max_len < 1:
            raise InvalidOption(f"Bytes(max_len={self.max_len!r}) is invalid. Give an integer of at least 1.")

    @staticmethod
    def unpack(values: Any, lengths: Any) -> list[bytes | None]:
        """Convert arrays of a batch back to bytes.

        `fb.Bytes.unpack(batch["key"], batch["key_lengths"])`. Text is `value.decode()`.

        Args:
            values: Array or tensor [rows, max_len] of uint8.
            lengths: Array or tensor [rows] of int32.
        """
        rows, sizes = np.ascontiguousarray(values, np.uint8), np.asarray(lengths).tolist()
        return [None if size < 0 else row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def array_names(self, name: str) -> tuple[str, ...]:
        return (name, f"{name}_lengths")

    def check(self, name: str, schema: Schema) -> None:
        found = column_type(f"Bytes {name!r}", self.column, schema)
        if not (is_text(value_type(found)) or pa.types.is_null(found)):
            raise wrong_type(f"Bytes {name!r}", self.column, found, "It takes strings and binary values.")

    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]:
        padded = empty_array((table.num_rows, self.max_len), "uint8")
        lengths = np.empty(table.num_rows, np.int32)
        start = 0
        for chunk in table[self.column].chunks:
            rows = slice(start, start + len(chunk))
            values, starts, found = list_parts(_as_lists(chunk))
            self._check_lengths(name, found, start)
            pad_rows(padded[rows], values.to_numpy(), starts, found)
            lengths[rows] = np.where(chunk.is_null().to_numpy(zero_copy_only=False), -1, found)
            start += len(chunk)
        return dict(zip(self.array_names(name), (padded, lengths), strict=True))

    def identity(self) -> Identity:
        return ["Bytes", self.column, self.max_len]

    def _check_lengths(self, name: str, lengths: BlockArray, start: int) -> None:
        if not len(lengths) or (longest := int(lengths.max())) <= self.max_len:
            return
        row = start + int(lengths.argmax())
        raise InvalidOption(
            f"Bytes {name!r} found {longest} bytes in column {self.column!r}, row {row} of its row group, and has "
            f"max_len={self.max_len}. Nothing is cut: give a larger max_len.",
            column=self.column,
            found=longest,
        )


def _as_lists(array: pa.Array) -> pa.Array:
    """View values as lists of bytes.

    They share their memory where the type has offsets.
    """
    while pa.types.is_dictionary(array.type) or isinstance(array.type, pa.BaseExtensionType):
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array.storage
    plain = pc.cast(array, pa.large_binary())
    _, offsets, data = plain.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(plain) + 1, plain.offset * 8) if len(plain) else np.zeros(1, np.int64)
    values = pa.Array.from_buffers(pa.uint8(), data.size if data else 0, [None, data or pa.py_buffer(b"")])
    return pa.LargeListArray.from_arrays(pa.array(bounds), values, mask=pc.is_null(plain))
