"""Columns of one Parquet file.

Facts that all row groups share.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forebay.data.parquet.column_paths import steps_of, top_column
from forebay.data.parquet.schemas import arrow_schema, has_registered_type, leaves_of


class NumberColumn(NamedTuple):
    """A column of integers or floats of 4 or 8 bytes.

    Name, Arrow type, bytes of an item, whether it may have nulls, and index of its chunk among the fetched ones.
    """

    name: str
    type: pa.DataType
    item_bytes: int
    is_optional: bool
    chunk: int


class NumberColumns:
    """Numeric columns among the fetched column chunks.

    First the columns of 4 bytes, then the columns of 8 bytes.

    Attributes:
        columns: The columns.
        groups: Bytes of an item, and the slice of its columns.
        leaves: Number of each column's chunk in the file, int64 [columns].
        chunks: Index of each column's chunk among the fetched ones, int64 [columns].
        is_optional: Whether each column may have nulls, int64 [columns].
    """

    def __init__(self, found: Sequence[NumberColumn], leaves: Sequence[int]) -> None:
        self.columns = tuple(sorted(found, key=lambda column: column.item_bytes))
        num_short = sum(column.item_bytes == 4 for column in found)
        self.groups = ((4, slice(0, num_short)), (8, slice(num_short, len(found))))
        self.chunks = np.array([column.chunk for column in self.columns], np.int64)
        self.leaves = np.array(leaves, np.int64)[self.chunks]
        self.is_optional = np.array([column.is_optional for column in self.columns], np.int64)
        self._index_of = {column.name: index for index, column in enumerate(self.columns)}
        self._indices: dict[tuple[tuple[str, ...], pa.DataType], NDArray[np.int64]] = {}

    def index(self, name: str) -> int:
        """Index of a column in `columns`, or -1."""
        return self._index_of.get(name, -1)

    def indices(self, names: tuple[str, ...], kind: pa.DataType) -> NDArray[np.int64]:
        """Indices of `names` in `columns`, int64 [names].

        -1 for a column of another type than `kind`. Computed once.
        """
        key = (names, kind)
        if key not in self._indices:
            indices = [self.index(name) for name in names]
            is_kind = [index >= 0 and self.columns[index].type == kind for index in indices]
            self._indices[key] = np.where(is_kind, indices, -1).astype(np.int64)
        return self._indices[key]


_STORED = {4: ("INT32", "FLOAT"), 8: ("INT64", "DOUBLE")}
"""Parquet's types of numbers by the size of an item, which must equal the size of the Arrow type."""
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


class TextColumn(NamedTuple):
    """A column of strings or binary values.

    Its name, Arrow type, and whether it may have nulls.
    """

    name: str
    type: pa.DataType
    is_optional: bool


class ListColumn(NamedTuple):
    """A column of lists of numbers.

    Its name, Arrow type, bytes of an item, and whether lists may be null.

    `level` is the definition level of a value.
    """

    name: str
    type: pa.DataType
    item_bytes: int
    is_optional: bool
    level: int


class ParquetColumns:
    """Facts about the columns of a footer, safe for threads.

    Each is computed once, at its first use.

    For 100 columns they took 0.9 ms of CPU time for each row group, half as long as decoding one of 15,000 rows.
    """

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self._metadata = metadata
        self._leaves: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._numbers: dict[tuple[int, ...], NumberColumns] = {}
        self._lists: dict[tuple[int, ...], tuple[ListColumn | None, ...]] = {}
        self._texts: dict[tuple[int, ...], tuple[TextColumn | None, ...]] = {}
        self._tops: dict[tuple[str, ...], dict[str, str]] = {}
        self._row_bits: dict[tuple[str, ...], int] = {}
        self._schemas: dict[tuple[str, ...], pa.Schema] = {}

    @cached_property
    def is_shareable(self) -> bool:
        """Whether `are_of` compares everything.

        Arrow does not compare groups, so no column may be in one. A large footer is not kept for others.
        """
        return self._metadata.serialized_size <= _MOST_KEPT_BYTES and not any("." in path for path in self._paths)

    def are_of(self, metadata: pq.FileMetaData) -> bool:
        """Whether a file of a flat schema has these facts."""
        return (
            bool(metadata.schema.equals(self._metadata.schema))
            and _paths_of(metadata) == self._paths
            and metadata.metadata == self._key_values
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the file.

        Raises `pa.ArrowException` for a type that Arrow does not read.
        """
        return arrow_schema(self._metadata)

    @cached_property
    def _paths(self) -> tuple[str, ...]:
        return _paths_of(self._metadata)

    @cached_property
    def _key_values(self) -> object:
        """Metadata of the writer, with Arrow's types among them."""
        return self._metadata.metadata

    def path(self, leaf: int) -> str:
        """Path of a column chunk."""
        return self._paths[leaf]

    @cached_property
    def is_flat(self) -> NDArray[np.bool_]:
        """Whether each column chunk has one entry a row.

        Chunks in lists have more, bool [column chunks].
        """
        parquet = self._metadata.schema
        return np.array([not parquet.column(leaf).max_repetition_level for leaf in range(len(parquet))], np.bool_)

    @cached_property
    def times_of_96_bits(self) -> frozenset[int]:
        """Numbers of the column chunks of INT96."""
        parquet = self._metadata.schema
        return frozenset(leaf for leaf in range(len(parquet)) if parquet.column(leaf).physical_type == "INT96")

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((num_leaves(field.type) for field in self.schema), initial=0))

    @cached_property
    def leaf_starts(self) -> dict[str, int]:
        """Number of the first column chunk of each column."""
        return dict(zip(self.schema.names, self._starts, strict=False))

    def top_of(self, leaf: int) -> str:
        """Column that a column chunk belongs to."""
        return str(self.schema.names[bisect.bisect_right(self._starts, leaf) - 1])

    def has_lists(self, name: str) -> bool:
        """Whether a column has a list at any depth."""
        start = self.leaf_starts[name]
        return not self.is_flat[start : start + num_leaves(self.schema.field(name).type)].all()

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.schema.names)

    def numbers(self, leaves: tuple[int, ...]) -> NumberColumns:
        """Numeric columns among some column chunks."""
        if leaves not in self._numbers:
            found = [self._number(leaf, index) for index, leaf in enumerate(leaves)]
            self._numbers[leaves] = NumberColumns([column for column in found if column], leaves)
        return self._numbers[leaves]

    def lists(self, leaves: tuple[int, ...]) -> tuple[ListColumn | None, ...]:
        """List column of each column chunk, or None.

        Only lists of plain numbers count.
        """
        if leaves not in self._lists:
            parquet = self._metadata.schema
            self._lists[leaves] = tuple(self._list(parquet.column(leaf)) for leaf in leaves)
        return self._lists[leaves]

    def texts(self, leaves: tuple[int, ...]) -> tuple[TextColumn | None, ...]:
        """Text column of each column chunk, or None."""
        if leaves not in self._texts:
            parquet = self._metadata.schema
            self._texts[leaves] = tuple(self._text(parquet.column(leaf)) for leaf in leaves)
        return self._texts[leaves]

    def tops(self, columns: tuple[str, ...]) -> dict[str, str]:
        """Top-level column of each path.

        A name without one stands for itself.
        """
        if columns not in self._tops:
            self._tops[columns] = {name: top_column(name, self.names) or name for name in columns}
        return self._tops[columns]

    def decodable(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Paths that Arrow decodes for some paths.

        Of a struct under a type that Python code registered, Arrow decodes all fields.
        """
        types = self._registered
        return tuple(dict.fromkeys(_whole_path(path, types) for path in columns)) if types else tuple(columns)

    @cached_property
    def _registered(self) -> dict[str, pa.DataType]:
        """Columns of types that Python code registered, or with such fields."""
        return {
            field.name: field.type
            for field in self._metadata.schema.to_arrow_schema()
            if has_registered_type(field.type)
        }

    def leaves(self, columns: Sequence[str]) -> tuple[int, ...]:
        """Numbers of the column chunks that hold `columns`."""
        wanted = tuple(columns)
        if wanted not in self._leaves:
            self._leaves[wanted] = tuple(leaves_of(self._paths, wanted))
        return self._leaves[wanted]

    def row_bits(self, columns: Sequence[str]) -> int:
        """Least bits of a decoded row.

        Of lists and texts, only the offsets count.
        """
        wanted = tuple(columns)
        if wanted not in self._row_bits:
            top_of = self.tops(wanted)
            types = [self.schema.field(top).type for top in dict.fromkeys(top_of.values()) if top in self.names]
            self._row_bits[wanted] = sum(map(_least_bits, types))
        return self._row_bits[wanted]

    def schema_of(self, columns: Sequence[str]) -> pa.Schema:
        """Schema of some columns, in their order."""
        wanted = tuple(columns)
        if wanted not in self._schemas:
            self._schemas[wanted] = pa.schema([self.schema.field(name) for name in wanted], self.schema.metadata)
        return self._schemas[wanted]

    def _number(self, leaf: int, index: int) -> NumberColumn | None:
        column = self._metadata.schema.column(leaf)
        # A dot: part of a struct, or a column that may have the same path as one.
        if column.max_repetition_level or column.max_definition_level > 1 or "." in column.path:
            return None
        found = self.schema.get_field_index(column.path)  # -1 for two columns of one name
        if found < 0:
            return None
        arrow = self.schema.field(found).type
        if not _is_stored_as(arrow, column):
            return None
        return NumberColumn(column.path, arrow, arrow.bit_width // 8, bool(column.max_definition_level), index)

    def _text(self, column: pq.ColumnSchema) -> TextColumn | None:
        arrow = self._flat_type(column)
        if arrow not in _TEXTS or column.physical_type != "BYTE_ARRAY":
            return None
        return TextColumn(column.path, arrow, bool(column.max_definition_level))

    def _flat_type(self, column: pq.ColumnSchema) -> pa.DataType | None:
        """Arrow type of a flat column. None for a nested one.

        Lists and parts of structs are not flat.
        """
        # A dot: part of a struct, or a column that may have the same path as one.
        if column.max_repetition_level or column.max_definition_level > 1 or "." in column.path:
            return None
        found = self.schema.get_field_index(column.path)
        return None if found < 0 else self.schema.field(found).type

    def _list(self, column: pq.ColumnSchema) -> ListColumn | None:
        name = column.path.split(".")[0]
        found = self.schema.get_field_index(name)
        # Another column chunk with such a path: part of a column whose name has a dot.
        if found < 0 or column.max_repetition_level != 1 or self._paths_below(name) != 1:
            return None
        field = self.schema.field(found)
        if not (pa.types.is_list(field.type) or pa.types.is_large_list(field.type)):
            return None
        # The standard form has a level for a null list, one for an empty list, and one for a null in a list.
        levels = field.nullable + 1 + field.type.value_field.nullable
        if column.max_definition_level != levels or not _is_stored_as(field.type.value_type, column):
            return None
        return ListColumn(name, field.type, field.type.value_type.bit_width // 8, field.nullable, levels)

    def _paths_below(self, name: str) -> int:
        return sum(path.startswith(f"{name}.") for path in self._paths)


def _whole_path(path: str, types: Mapping[str, pa.DataType]) -> str:
    top = top_column(path, types)
    if top is None:
        return path
    held, kind = [top], types[top]
    for step in steps_of(path, top):
        if isinstance(kind, pa.ExtensionType):
            break
        held.append(step)
        kind = kind.field(step).type
    return ".".join(held)


_MOST_KEPT, _MOST_KEPT_BYTES = 8, 1 << 20
_kept: deque[ParquetColumns] = deque(maxlen=_MOST_KEPT)


def columns_of(metadata: pq.FileMetaData) -> ParquetColumns:
    """Facts about the columns of a footer, shared by files of one flat schema.

    Of 100 columns they take 1.3 ms of CPU time, a sixth of a block, and each process reads nearly every file.
    """
    # Without a lock: two threads at once make them twice.
    found = next((each for each in list(_kept) if each.are_of(metadata)), None)
    if found is None:
        found = ParquetColumns(metadata)
        if found.is_shareable:
            _kept.append(found)
    return found


def num_leaves(kind: pa.DataType) -> int:
    """Number of column chunks that hold a column of this type."""
    if isinstance(kind, pa.BaseExtensionType):
        return num_leaves(kind.storage_type)
    if pa.types.is_map(kind):
        return num_leaves(kind.key_type) + num_leaves(kind.item_type)
    if is_list_like(kind):
        return num_leaves(kind.value_type)
    return sum(num_leaves(field.type) for field in kind) if pa.types.is_struct(kind) else 1


def is_list_like(kind: pa.DataType) -> bool:
    """Whether a value is a list of any kind, but no map."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _paths_of(metadata: pq.FileMetaData) -> tuple[str, ...]:
    parquet = metadata.schema
    return tuple(parquet.column(leaf).path for leaf in range(len(parquet)))


def _least_bits(kind: pa.DataType) -> int:
    """Least bits of a decoded value. A struct counts as one."""
    try:
        return int(kind.bit_width)
    except ValueError:  # no fixed width
        return 32


def _is_stored_as(arrow: pa.DataType, column: pq.ColumnSchema) -> bool:
    """Whether chunks hold numbers as they are in memory.

    `arrow` must be a type of integers or floats of the stored width.
    """
    is_number = pa.types.is_integer(arrow) or pa.types.is_floating(arrow)
    return is_number and column.physical_type in _STORED.get(arrow.bit_width // 8, ())
