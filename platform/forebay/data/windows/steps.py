"""Steps of a row group, in sorted order.

Sorted by (entity, time, row in the file), and read from either layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.data.transform.block import BlockArray
from forebay.data.transform.features.categories import is_text, value_type
from forebay.data.transform.features.columns import check_numeric, column_names, column_type, wrong_type
from forebay.data.transform.features.groups import Feature, Ragged, Schema
from forebay.data.transform.features.numeric import cast_numbers, check_dtype, pack_rows, whole
from forebay.data.transform.features.ragged import is_list, list_parts
from forebay.data.transform.fingerprint.values import Identity
from forebay.data.windows.times import time_text
from forebay.errors import BadSeries, InvalidOption

_CLOCKS = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_integer)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepColumns:
    """Columns kept in a block of sequences.

    Independent of windows, splits and scales: all trials of a sweep over these share their blocks.

    Attributes:
        entity: Column of integers or strings that names the series of a row. None: all rows are one series.
        time: Column of timestamps, dates or integers that orders the steps. None: the order of the files.
        values: Columns of the steps, by dtype of their array.
        static: Features that are constant within a series, by array name.
        is_list: Whether a row holds the steps of one series as lists, rather than one step.
    """

    entity: str | None
    time: str | None
    values: Mapping[str, tuple[str, ...]]
    static: Mapping[str, Feature] = field(default_factory=dict)
    is_list: bool = False

    def __post_init__(self) -> None:
        named = {
            check_dtype("Sequences", dtype): column_names("Sequences", names) for dtype, names in self.values.items()
        }
        if not named:
            raise InvalidOption("Sequences has no column of steps. Name at least one in fb.History.")
        object.__setattr__(self, "values", named)
        for name, feature in self.static.items():
            if isinstance(feature, Ragged) and not feature.padded:
                raise InvalidOption(
                    f"Static feature {name!r} of Sequences is Ragged(padded=False), and batches of windows hold padded "
                    "lists. Give padded=True and max_len=..."
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read, each once."""
        own = [name for name in (self.entity, self.time) if name is not None]
        static = chain.from_iterable(feature.columns for feature in self.static.values())
        return tuple(dict.fromkeys([*own, *chain.from_iterable(self.values.values()), *static]))

    @property
    def has_rows_as_steps(self) -> bool:
        """Whether steps are rows, in file order."""
        return self.entity is None and self.time is None and not self.is_list

    def keys(self) -> StepColumns:
        """Reduce to the columns that order the steps.

        One column of values stays.
        """
        dtype, names = next(iter(self.values.items()))
        return StepColumns(entity=self.entity, time=self.time, values={dtype: names[:1]}, is_list=self.is_list)

    def time_type(self, schema: Schema) -> pa.DataType:
        """Type of one time.

        Raises `MissingColumn`. Needs a time column.
        """
        assert self.time is not None
        return _item(column_type("Sequences(time)", self.time, schema))

    def identity(self) -> Identity:
        """Everything that the arrays depend on."""
        values: list[Identity] = [[dtype, list(names)] for dtype, names in self.values.items()]
        static: list[Identity] = [[name, feature.identity()] for name, feature in self.static.items()]
        return ["Sequences", self.entity, self.time, values, static, self.is_list]

    def check(self, schema: Schema) -> None:
        """Raise `MissingColumn` or `WrongType` for an unusable column."""
        if self.entity is not None:
            found = column_type("Sequences(entity)", self.entity, schema)
            if not (is_text(value_type(found)) or pa.types.is_integer(value_type(found))):
                raise wrong_type("Sequences(entity)", self.entity, found, "An entity is an integer or a string.")
        if self.time is not None:
            self._check_time(column_type("Sequences(time)", self.time, schema))
        for dtype, names in self.values.items():
            for name in names:
                found = column_type("Sequences", name, schema)
                if is_list(found) != self.is_list:
                    raise wrong_type("Sequences", name, found, _MIXED)
                check_numeric("Sequences", name, _item(found), dtype)
        for name, feature in self.static.items():
            feature.check(name, schema)

    def _check_time(self, found: pa.DataType) -> None:
        assert self.time is not None
        if is_list(found) != self.is_list:
            raise wrong_type("Sequences(time)", self.time, found, _MIXED)
        if not any(kind(_item(found)) for kind in _CLOCKS):
            remedy = "A time is a timestamp, a date or an integer. Floats repeat and round: cast them to integers."
            raise wrong_type("Sequences(time)", self.time, found, remedy)


_MIXED = "The time and the columns of steps must all be lists (a row is a series), or none of them (a row is a step)."


def _item(found: pa.DataType) -> pa.DataType:
    return found.value_type if is_list(found) else found


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Steps of a row group in sorted order.

    Attributes:
        row: Row of the table that a step lies in, int64 [steps].
        ends: End of each run on the sorted steps, int64 [runs]. A run holds all steps of one entity.
        entities: Entity of each run, int64 or large_string [runs].
        time: Time of each step in the column's own unit, int64 [steps]. Without a time column: number in the row group.
        values: Array [steps, columns] by dtype.
        wide: The values before they were rounded to their dtype, float64 [steps, columns]. Only of dtypes that rounded
            one.
    """

    row: Ints
    ends: Ints
    entities: pa.Array
    time: Ints
    values: dict[str, BlockArray]
    wide: dict[str, NDArray[np.float64]]


def sorted_steps(columns: StepColumns, table: pa.Table) -> Steps:
    """Sort the steps of `table`.

    Raises `BadSeries` for nulls in the entity or time, repeated steps, or unequal lists.
    """
    row = _rows_of_steps(columns, table)
    codes, entities = _entities(columns, table)
    step_codes = codes[row]
    time = _times(columns, table, row)
    order = np.lexsort((time, step_codes))
    is_sorted = bool(np.all(order[1:] > order[:-1]))
    row, step_codes, time = (row, step_codes, time) if is_sorted else (row[order], step_codes[order], time[order])
    last = np.flatnonzero(np.diff(step_codes, append=-1)) if len(row) else np.empty(0, np.int64)
    used = entities.take(pa.array(step_codes[last]))
    if columns.time is not None:
        time_type = columns.time_type(dict(zip(table.schema.names, table.schema.types, strict=True)))
        _refuse_repeated(columns, used, step_codes, time, row, time_type)
    values, wide = {}, {}
    for dtype, names in columns.values.items():
        items = {name: _step_items(columns, table, name) for name in names}
        packed, exact = _packed(items, dtype), _exact_values(items, dtype)
        if exact is not None and _refuse_too_large(names, packed, exact, dtype):
            wide[dtype] = exact if is_sorted else exact[order]
        # After packing: one take of whole rows is faster than a take per column.
        values[dtype] = np.ascontiguousarray(packed if is_sorted else packed[order])
    return Steps(row=row, ends=last + 1, entities=used, time=time, values=values, wide=wide)


def _rows_of_steps(columns: StepColumns, table: pa.Table) -> Ints:
    """Row of each step, int64 [steps].

    Raises `BadSeries` if two lists of a row have different lengths.
    """
    if not columns.is_list:
        return np.arange(table.num_rows, dtype=np.int64)
    names = [name for group in columns.values.values() for name in group]
    names += [columns.time] if columns.time is not None else []
    lengths = {name: list_parts(whole(table[name]))[2].astype(np.int64) for name in names}
    first = lengths[names[0]]
    for name in names[1:]:
        if (differs := np.flatnonzero(lengths[name] != first)).size:
            at = int(differs[0])
            raise BadSeries(
                f"Row {at} has {first[at]} steps in column {names[0]!r} and {lengths[name][at]} in {name!r}. The lists "
                "of a row hold the same steps: write them with equal lengths.",
                row=at,
                columns=(names[0], name),
            )
    return np.repeat(np.arange(table.num_rows, dtype=np.int64), first)


def _entities(columns: StepColumns, table: pa.Table) -> tuple[Ints, pa.Array]:
    """Return each row's entity number, and the entities.

    The numbers are int64 [rows], the entities ascend.
    """
    if columns.entity is None:
        return np.zeros(table.num_rows, dtype=np.int64), pa.array([0], pa.int64())
    column = whole(table[columns.entity])
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    refuse_nulls(f"the entity column {columns.entity!r}", column)
    try:
        column = column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.large_string())
    except pa.ArrowInvalid as error:
        raise BadSeries(
            f"The entity column {columns.entity!r} ({column.type}) holds a value that is not an int64 or UTF-8 string: "
            f"{error}. Cast it.",
            column=columns.entity,
        ) from error
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[encoded.indices.to_numpy()], encoded.dictionary.take(pa.array(order))


def _times(columns: StepColumns, table: pa.Table, row: Ints) -> Ints:
    if columns.time is None:
        return np.arange(len(row), dtype=np.int64)
    column = whole(table[columns.time])
    if columns.is_list:
        column = _items(column)
    refuse_nulls(f"the time column {columns.time!r}", column, row)
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    try:
        return np.asarray(column.cast(pa.int64()).to_numpy(), dtype=np.int64)
    except pa.ArrowInvalid as error:  # uint64 beyond int64
        raise BadSeries(
            f"The time column {columns.time!r} ({column.type}) does not fit int64: {error}. Write timestamps or int64.",
            column=columns.time,
        ) from error


def refuse_nulls(what: str, column: pa.Array, row: Ints | None = None) -> None:
    """Raise `BadSeries` for a null.

    `row` is the row of each value, if it differs from its index.
    """
    if column.null_count:
        index = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        at = index if row is None else int(row[index])
        raise BadSeries(
            f"Row {at} has a null in {what}, as {column.null_count} of {len(column)} values. A step without them "
            "belongs nowhere: fill them in, or filter such rows out before writing the files.",
            row=at,
            nulls=column.null_count,
        )


def _refuse_repeated(
    columns: StepColumns, entities: pa.Array, codes: Ints, time: Ints, row: Ints, time_type: pa.DataType
) -> None:
    repeated = np.flatnonzero((np.diff(codes) == 0) & (np.diff(time) == 0))
    if not repeated.size:
        return
    at = int(repeated[0])
    run = int(np.flatnonzero(np.diff(codes[: at + 1])).size)
    when = time_text(int(time[at]), time_type)
    raise BadSeries(
        f"Rows {row[at]} and {row[at + 1]} are both step {when} ({columns.time}) of entity "
        f"{entities[run].as_py()!r}; {repeated.size} steps of the row group are repeated. Keep one of each: remove "
        "duplicates before writing the files, or name the entity by one more column.",
        rows=(int(row[at]), int(row[at + 1])),
        time=int(time[at]),
        entity=entities[run].as_py(),
    )


def _step_items(columns: StepColumns, table: pa.Table, name: str) -> pa.Array:
    column = whole(table[name])
    return _items(column) if columns.is_list else column


def _packed(items: Mapping[str, pa.Array], dtype: str) -> BlockArray:
    """Pack columns into an array [steps, columns]."""
    arrays = []
    for name, item in items.items():
        column = cast_numbers("Sequences", name, item, dtype)
        if column.null_count and not dtype.startswith("float"):
            raise BadSeries(
                f"Column {name!r} has {column.null_count} nulls, which {dtype} cannot hold. Give a float dtype, where "
                "a null is NaN, or fill them in before writing the files.",
                column=name,
                nulls=column.null_count,
            )
        if column.null_count:
            column = pc.fill_null(column, pa.scalar(np.nan, pa.float64()).cast(column.type))
        arrays.append(column)
    return pack_rows(arrays, dtype)


_ROUNDED = {"float32": 24, "float16": 11}
"""Bits of the whole numbers that a dtype holds."""


def _exact_values(items: Mapping[str, pa.Array], dtype: str) -> NDArray[np.float64] | None:
    """Values as float64 [steps, columns].

    None if `dtype` rounds none of them, by their types.
    """
    if all(_is_exact(item.type, dtype) for item in items.values()):
        return None
    columns = [cast_numbers("Sequences", name, item, "float64") for name, item in items.items()]
    return np.stack([column.to_numpy(zero_copy_only=False).astype(np.float64) for column in columns], axis=1)


def _is_exact(kind: pa.DataType, dtype: str) -> bool:
    kind = value_type(kind)
    if dtype not in _ROUNDED or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return True
    if pa.types.is_floating(kind):
        return bool(kind.bit_width <= np.dtype(dtype).itemsize * 8)
    return bool(pa.types.is_integer(kind) and kind.bit_width <= _ROUNDED[dtype])


def _refuse_too_large(names: Sequence[str], packed: BlockArray, exact: NDArray[np.float64], dtype: str) -> bool:
    """Whether `packed` rounds any of the `exact` values.

    Raises `BadSeries` for a finite value that became infinite.
    """
    wrong = np.isinf(packed) & np.isfinite(exact)
    if wrong.any():
        step, column = (int(each[0]) for each in np.nonzero(wrong))
        raise BadSeries(
            f"Column {names[column]!r} has the value {exact[step, column]}, and {dtype} ends at "
            f"{np.finfo(dtype).max:.3g}. Give History(dtype=...) or Horizon(dtype=...) a wider one, or divide the "
            "column before writing the files.",
            column=names[column],
        )
    return bool(((packed != exact) & ~np.isnan(exact)).any())


def _items(lists: pa.Array) -> pa.Array:
    """Items of all lists, in order.

    A null list has none.
    """
    return pc.list_flatten(lists)
