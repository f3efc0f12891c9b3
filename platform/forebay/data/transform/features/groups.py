"""Features: which columns become which arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.data.parquet.column_paths import operand_text
from forebay.data.parquet.decoded_table import Columns, DecodedTable, encoded
from forebay.data.transform.block import BlockArray
from forebay.data.transform.features.categories import (
    check_buckets,
    check_categories,
    hashed_ids,
    value_type,
    vocabulary_array,
    vocabulary_ids,
    vocabulary_of,
)
from forebay.data.transform.features.columns import check_numeric, column_names, column_type, wrong_type
from forebay.data.transform.features.numeric import (
    address_of,
    cast_numbers,
    check_dtype,
    check_fill,
    fill_nulls,
    is_packed_by_address,
    pack_addresses,
    pack_rows,
    whole,
)
from forebay.data.transform.features.ragged import (
    LIST_OFFSETS,
    LIST_VALUES,
    concatenated,
    is_list,
    join_lists,
    list_offsets,
    list_parts,
    pad_rows,
)
from forebay.data.transform.fingerprint.values import Identity, value_identity
from forebay.errors import InvalidOption, NullLabel
from forebay.runtime.memory.pool import empty_array

Schema: TypeAlias = Mapping[str, pa.DataType]

ID_DTYPES = ("int32", "int64")


class Feature(Protocol):
    """Columns that become arrays of a `Transform`.

    `name` is the keyword of the `Transform`. `columns` are the columns to read. `array_names` are the arrays of a
    batch. `check` raises `MissingColumn` or `WrongType` before any data is read.

    Laws:
    - `arrays` is a pure function of the table's values. Chunks and dictionary encoding change nothing.
    - `identity` covers everything that `arrays` depends on.
    """

    @property
    def columns(self) -> Sequence[str]: ...
    def array_names(self, name: str) -> tuple[str, ...]: ...
    def check(self, name: str, schema: Schema) -> None: ...
    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]: ...
    def identity(self) -> Identity: ...


@dataclass(frozen=True, slots=True)
class Dense:
    """Numeric columns side by side.

    They become array [rows, len(columns)] of `dtype`. Nulls become `fill`. NaN stays NaN. Takes columns of integers,
    floats, bools and decimals. Numbers are rounded to a narrower float `dtype`: float32 holds whole numbers to 2**24,
    so ids belong in `Categorical`. Raises `InvalidOption` for an unknown dtype or a fill that does not fit it, and
    `WrongType` for other columns.
    """

    columns: Sequence[str]
    dtype: str = "float32"
    fill: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_names("Dense", self.columns))
        object.__setattr__(self, "dtype", check_dtype("Dense", self.dtype))
        object.__setattr__(self, "fill", check_fill("Dense", self.fill, self.dtype))

    def array_names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def check(self, name: str, schema: Schema) -> None:
        feature = f"Dense {name!r}"
        for column in self.columns:
            check_numeric(feature, column, column_type(feature, column, schema), self.dtype)

    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]:
        target = pa.from_numpy_dtype(np.dtype(self.dtype))
        if not (isinstance(table, DecodedTable) and table.num_rows and is_packed_by_address(self.dtype)):
            return {name: pack_rows([self._filled(name, column, table, target) for column in self.columns], self.dtype)}
        addresses = table.addresses(tuple(self.columns), target)
        others = {
            index: self._filled(name, self.columns[index], table, target)
            for index in np.flatnonzero(addresses == 0).tolist()
        }
        for index, array in others.items():
            addresses[index] = address_of(array)
        return {name: pack_addresses(addresses, table.num_rows, self.dtype)}

    def identity(self) -> Identity:
        return ["Dense", list(self.columns), self.dtype, repr(self.fill)]

    def _filled(self, name: str, column: str, table: Columns, target: pa.DataType) -> pa.Array:
        array = whole(table[column])
        if array.type == target and not array.null_count:
            return array
        return fill_nulls(cast_numbers(f"Dense {name!r}", column, array, self.dtype), self.fill)


@dataclass(frozen=True, slots=True)
class Categorical:
    """Categorical values as ids. Id 0 is null.

    They become array [rows, len(columns)] of int32 or int64. Without `vocabulary` an id is a hash of (column name,
    value) in [1, buckets). `vocabulary` maps columns to values, as `fb.Vocabulary.fit` returns it. Entries of other
    columns are ignored. With it, id 1 is any unknown value, and id 2 + i is the value at position i.

    Without `dtype` the ids are int32 if all of them fit, else int64. torch's embeddings take both. `array_dtype` is the
    dtype in use.

    Takes integers, bools, strings, binary, decimals, dates, times and dictionaries of them. Raises `WrongType` for
    floats and other types. Raises `InvalidOption` for fewer than 2 buckets, and for a vocabulary that lacks a column or
    holds a null or a repeated value. Raises `InvalidOption` also for a `dtype` other than int32 and int64, or one too
    narrow for the ids.
    """

    columns: Sequence[str]
    buckets: int = 1_000_000
    vocabulary: Mapping[str, Sequence[Any]] | None = field(default=None, hash=False)
    dtype: str | None = None
    # Converting a vocabulary of a million Python values to Arrow takes longer than the lookups of a row group.
    _typed: dict[tuple[str, str], pa.Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_names("Categorical", self.columns))
        check_buckets("Categorical", self.buckets)
        if self.vocabulary is not None:
            object.__setattr__(self, "vocabulary", {c: vocabulary_of(c, self.vocabulary) for c in self.columns})
        object.__setattr__(self, "dtype", check_id_dtype("Categorical", self.dtype, max(self.num_ids)))

    @property
    def array_dtype(self) -> str:
        """Dtype of the array: "int32" or "int64"."""
        return self.dtype or smallest_id_dtype(max(self.num_ids))

    @property
    def num_ids(self) -> tuple[int, ...]:
        """Number of ids of each column.

        It includes null and unknown: the number of rows of its embedding.
        """
        if self.vocabulary is None:
            return (self.buckets,) * len(self.columns)
        return tuple(len(self.vocabulary[column]) + 2 for column in self.columns)

    def array_names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def check(self, name: str, schema: Schema) -> None:
        feature = f"Categorical {name!r}"
        for column in self.columns:
            found = column_type(feature, column, schema)
            check_categories(feature, column, found)
            if self.vocabulary is not None:
                self._vocabulary(column, found)

    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]:
        out = empty_array((table.num_rows, len(self.columns)), self.array_dtype)
        for position, column in enumerate(self.columns):
            start = 0
            # Chunk by chunk, because every chunk may have its own dictionary.
            for chunk in encoded(table, column).chunks:
                out[start : start + len(chunk), position] = self._ids(column, chunk)
                start += len(chunk)
        return {name: out}

    def identity(self) -> Identity:
        if self.vocabulary is None:
            return ["Categorical", list(self.columns), self.array_dtype, self.buckets]
        return ["Categorical", list(self.columns), self.array_dtype, value_identity(self.vocabulary)]

    def _ids(self, column: str, chunk: pa.Array) -> BlockArray:
        if self.vocabulary is None:
            return hashed_ids(chunk, column, self.buckets)
        return vocabulary_ids(chunk, self._vocabulary(column, chunk.type))

    def _vocabulary(self, column: str, found: pa.DataType) -> pa.Array:
        assert self.vocabulary is not None
        key = (column, str(value_type(found)))
        if key not in self._typed:
            self._typed[key] = vocabulary_array(column, self.vocabulary[column], found)
        return self._typed[key]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of different lengths, padded.

    They become array NAME [rows, max_len] of `dtype` and array NAME_lengths [rows] of int32. Lists are cut at `max_len`
    and padded with 0. NAME_lengths holds the lengths after the cut. A null list has length 0. A null within a list
    becomes 0, and counts.

    With `padded=False`, blocks in the cache and batches have no padding. Array NAME [total] holds the values of all
    lists of the batch, in the order of its rows, and NAME_lengths their lengths. Without `max_len` nothing is cut.

    Takes lists of integers, floats and bools, as int64 without `dtype`. With `buckets` it takes lists of the types that
    `Categorical` takes, and hashes them in the same way. The dtype of the ids follows the rule of `Categorical`.
    `array_dtype` is the dtype in use.

    Raises `WrongType` for lists of lists and other types. Raises `InvalidOption` for `max_len` < 1, padding without
    `max_len`, and an unusable `dtype`.
    """

    column: str
    max_len: int | None = None
    dtype: str | None = None
    buckets: int | None = None
    padded: bool = True

    def __post_init__(self) -> None:
        column_names("Ragged", [self.column])
        if not isinstance(self.padded, bool):
            raise InvalidOption(f"Ragged(padded={self.padded!r}) is invalid. Give True or False.")
        if self.max_len is None and self.padded:
            raise InvalidOption(
                f"Ragged({self.column!r}) pads lists and has no max_len. Give max_len=..., or padded=False for batches "
                "of values and lengths."
            )
        if self.max_len is not None and (not isinstance(self.max_len, int) or self.max_len < 1):
            raise InvalidOption(
                f"Ragged(max_len={self.max_len!r}) is invalid. Give an integer of at least 1.", max_len=self.max_len
            )
        if self.buckets is not None:
            check_buckets("Ragged", self.buckets)
            object.__setattr__(self, "dtype", check_id_dtype("Ragged", self.dtype, self.buckets))
        elif self.dtype is not None:
            object.__setattr__(self, "dtype", check_dtype("Ragged", self.dtype))

    @property
    def array_dtype(self) -> str:
        """Dtype of array NAME, such as "int64"."""
        return self.dtype or ("int64" if self.buckets is None else smallest_id_dtype(self.buckets))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def array_names(self, name: str) -> tuple[str, ...]:
        return (name, f"{name}_lengths")

    def check(self, name: str, schema: Schema) -> None:
        feature = f"Ragged {name!r}"
        found = column_type(feature, self.column, schema)
        if pa.types.is_null(found):
            return
        if not is_list(found):
            raise wrong_type(feature, self.column, found, "It takes lists; use Dense or Categorical for single values.")
        if is_list(found.value_type):
            raise wrong_type(feature, self.column, found, "It takes lists of values, not of lists: flatten them first.")
        if self.buckets is not None:
            check_categories(feature, self.column, found.value_type)
        elif not pa.types.is_null(found.value_type):
            remedy = "Lists of strings, dates and the like need buckets=... to become ids."
            check_numeric(feature, self.column, found.value_type, self.array_dtype, remedy)

    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]:
        if self.max_len is None or not self.padded:
            return self._joined(name, table)
        padded = empty_array((table.num_rows, self.max_len), self.array_dtype)
        lengths = np.zeros(table.num_rows, np.int32)
        start = 0
        for chunk in table[self.column].chunks:
            rows = slice(start, start + len(chunk))
            if pa.types.is_null(chunk.type):
                padded[rows] = 0
            else:
                values, starts, found = list_parts(chunk)
                lengths[rows] = np.minimum(found, self.max_len)
                pad_rows(padded[rows], self._numbers(name, values), starts, lengths[rows])
            start += len(chunk)
        return dict(zip(self.array_names(name), (padded, lengths), strict=True))

    def identity(self) -> Identity:
        # Blocks of padded lists keep the names that they had before there were others.
        kind: list[Identity] = [] if self.padded else ["values, offsets"]
        return ["Ragged", self.column, self.max_len, self.array_dtype, self.buckets, *kind]

    def _joined(self, name: str, table: Columns) -> dict[str, BlockArray]:
        lengths, joined = list[BlockArray](), list[BlockArray]()
        for chunk in table[self.column].chunks:
            if pa.types.is_null(chunk.type):
                lengths.append(np.zeros(len(chunk), np.int32))
                continue
            values, starts, found = list_parts(chunk)
            kept = found if self.max_len is None else np.minimum(found, self.max_len, dtype=np.int32)
            joined.append(join_lists(self._numbers(name, values).astype(self.array_dtype, copy=False), starts, kept))
            lengths.append(kept)
        offsets = list_offsets(name, concatenated(lengths, "int32"))
        return {f"{LIST_VALUES}{name}": concatenated(joined, self.array_dtype), f"{LIST_OFFSETS}{name}": offsets}

    def _numbers(self, name: str, values: pa.Array) -> BlockArray:
        if self.buckets is not None:
            return hashed_ids(values, self.column, self.buckets)
        numbers = cast_numbers(f"Ragged {name!r}", self.column, values, self.array_dtype)
        array: BlockArray = fill_nulls(numbers).to_numpy()
        return array


@dataclass(frozen=True, slots=True)
class Label:
    """Target of the prediction.

    It becomes array [rows] of `dtype`. The column has numbers or bools. Raises `NullLabel` for nulls, NaN and
    infinities, with their number and the first row, and `WrongType` for other columns. `Dense` keeps NaN, for a loss
    that leaves such rows out.
    """

    column: str
    dtype: str = "float32"

    def __post_init__(self) -> None:
        column_names("Label", [self.column])
        object.__setattr__(self, "dtype", check_dtype("Label", self.dtype))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def array_names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def check(self, name: str, schema: Schema) -> None:
        feature = f"Label {name!r}"
        found = column_type(feature, self.column, schema)
        check_numeric(
            feature, self.column, found, self.dtype, "It takes numbers and bools: map classes to numbers first."
        )

    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]:
        array = cast_numbers(f"Label {name!r}", self.column, whole(table[self.column]), self.dtype)
        known = known_numbers(array)
        if not known.all():
            raise self._unknown(name, array, known)
        if not isinstance(table, DecodedTable):
            return {name: array.to_numpy()}
        # A copy: a block that is not stored would keep all decoded columns of its row group in memory.
        copied = empty_array((len(array),), self.dtype)
        copied[:] = array.to_numpy()
        return {name: copied}

    def identity(self) -> Identity:
        return ["Label", self.column, self.dtype]

    def _unknown(self, name: str, array: pa.Array, known: NDArray[np.bool_]) -> NullLabel:
        first, nulls = int(np.argmin(known)), array.null_count
        nans = 0 if not pa.types.is_floating(array.type) else pc.sum(pc.is_nan(array.cast(pa.float64()))).as_py() or 0
        infinite = len(known) - int(known.sum()) - nulls - nans
        counts = {"nulls": nulls, "NaN": nans, f"infinite values as {self.dtype}": infinite}
        remedy = "Leave such rows out: fb.scan(...).keep(transform)"
        if nulls and not nans + infinite:
            not_null = f"{operand_text(self.column)} is not None"
            remedy = f"Leave such rows out: fb.scan(..., where={not_null!r})"
        return NullLabel(
            f"Label {name!r} found {' and '.join(f'{count} {what}' for what, count in counts.items() if count)} in "
            f"column {self.column!r}, the first in row {first} of {len(array)}. {remedy}. Or fill them in the files.",
            column=self.column,
            nulls=nulls,
            nans=nans,
            infinite=infinite,
            first_row=first,
        )


def known_numbers(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Whether each value is a number, bool [rows].

    Null, NaN and the infinities are none.
    """
    if pa.types.is_floating(column.type):  # a null becomes NaN
        single = isinstance(column, pa.Array)
        return np.asarray(np.isfinite(column.to_numpy(zero_copy_only=False) if single else column.to_numpy()))
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid = column.is_valid()
    return np.asarray(valid.to_numpy(zero_copy_only=False) if isinstance(valid, pa.Array) else valid.to_numpy())


def smallest_id_dtype(num_ids: int) -> str:
    """Smallest dtype for ids in [0, num_ids).

    int32 if all of them fit, else int64.
    """
    return "int32" if num_ids - 1 <= np.iinfo(np.int32).max else "int64"


def check_id_dtype(feature: str, dtype: object, num_ids: int) -> str | None:
    """Return the name of `dtype`, or None.

    Raises `InvalidOption` unless it is None, int32 or int64, and holds the ids.
    """
    if dtype is None:
        return None
    name = check_dtype(feature, dtype)
    if name not in ID_DTYPES:
        raise InvalidOption(
            f"{feature}(dtype={name!r}) was given for ids. Ids are {' or '.join(ID_DTYPES)}, the dtypes that torch's "
            "embeddings take. Leave dtype out for the smaller one that fits.",
            dtype=name,
        )
    if name == "int32" and smallest_id_dtype(num_ids) != name:
        raise InvalidOption(
            f"{feature}(dtype='int32') cannot hold {num_ids:,} ids; it holds 2,147,483,648. Leave dtype out for int64, "
            "or use fewer buckets.",
            dtype=name,
            num_ids=num_ids,
        )
    return name
