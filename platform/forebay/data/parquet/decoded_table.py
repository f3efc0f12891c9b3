"""A decoded row group.

Numeric columns become Arrow arrays lazily, and texts keep their dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.arrow_checks import check_num_values, check_times
from forebay.data.parquet.column_casts import cast_to
from forebay.data.parquet.column_decoders import Numbers, decode_lists, decode_numbers, decode_texts
from forebay.data.parquet.column_paths import steps_of, top_column, type_at
from forebay.data.parquet.fetch import Pages
from forebay.data.parquet.parquet_columns import ParquetColumns
from forebay.data.parquet.schemas import has_registered_type

_NO_COLUMNS = pa.table({})
_NO_TEXTS: Mapping[str, pa.DictionaryArray] = {}


class DecodedTable:
    """A table of the columns `names`.

    `numbers` lie in one buffer, `texts` have dictionaries, and all others are in `rest`.

    Making an object of Arrow takes 5 us for each column, under the lock of Python. A transform that packs columns needs
    only their addresses (docs/internals/data-plane.md). `there` knows the fields of the file.

    A text of many rows is there once, and can get its id once: `encoded` gives a column as it is. All else gives it
    without its dictionary, as the file has it.

    Without `numbers`, `rest` has the schema and the rows, and there are no `texts`.
    """

    def __init__(
        self,
        names: Sequence[str],
        rest: pa.Table = _NO_COLUMNS,
        *,
        numbers: Numbers | None = None,
        texts: Mapping[str, pa.DictionaryArray] = _NO_TEXTS,
        there: ParquetColumns | None = None,
    ) -> None:
        self.names = tuple(names)
        self._rest = rest
        self._numbers = numbers
        self._texts = texts
        self._there = there

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._numbers.rows if self._numbers else int(self._rest.num_rows)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Type of each column."""
        found = {field.name: field.type for field in self._rest.schema}
        if self._numbers:
            found |= self._numbers.types
        found |= {name: column.type.value_type for name, column in self._texts.items()}
        return {name: found[name] for name in self.names}

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Arrow column.

        Numbers and texts are converted at each call. Numbers keep the buffer of all numbers alive.
        """
        if name in self._texts:
            return pa.chunked_array([self._texts[name].dictionary_decode()])
        found = self._numbers.column(name) if self._numbers else None
        return self._rest[name] if found is None else found

    def encoded(self, name: str) -> pa.ChunkedArray:
        """Arrow column that keeps the dictionary of texts."""
        return pa.chunked_array([self._texts[name]]) if name in self._texts else self[name]

    def addresses(self, names: tuple[str, ...], kind: pa.DataType) -> NDArray[np.int64]:
        """Addresses of numeric columns of type `kind`, int64 [names].

        0 for all other columns, and for columns with nulls.

        They are valid as long as this table is.
        """
        if not self._numbers:
            return np.zeros(len(names), np.int64)
        return self._numbers.addresses[self._numbers.layout.indices(names, kind)]

    def with_columns(self, added: Mapping[str, pa.Array | pa.ChunkedArray], names: Sequence[str]) -> DecodedTable:
        """Table with more columns, which are then the columns `names`."""
        rest = self._rest
        for name, column in added.items():
            field = pa.field(name, column.type)
            rest = rest.append_column(field, column) if rest.num_columns else pa.table([column], pa.schema([field]))
        return DecodedTable(names, rest, numbers=self._numbers, texts=self._texts, there=self._there)

    def to_table(self) -> pa.Table:
        """Arrow table with all columns and the file's metadata."""
        if not self._numbers or not self._there:
            return self._rest if self._rest.column_names == list(self.names) else self._rest.select(self.names)
        if not self._rest.num_columns:
            schema = self._there.schema_of(self.names)
        else:
            kept = {field.name: field for field in self._rest.schema}
            fields = [kept.get(name) or self._there.schema.field(name) for name in self.names]
            schema = pa.schema(fields, self._there.schema.metadata)
        return pa.table([self[name] for name in self.names], schema)


Columns: TypeAlias = pa.Table | DecodedTable
"""Columns by name, and `num_rows`."""


def as_table(columns: Columns) -> pa.Table:
    """Table of Arrow with these columns."""
    return columns.to_table() if isinstance(columns, DecodedTable) else columns


def encoded(columns: Columns, name: str) -> pa.ChunkedArray:
    """Column, dictionary-encoded if decoding gave a dictionary.

    For callers that do not depend on dictionaries.
    """
    return columns.encoded(name) if isinstance(columns, DecodedTable) else columns[name]


def names_of(columns: Columns) -> Sequence[str]:
    """Names of the columns."""
    return columns.names if isinstance(columns, DecodedTable) else columns.column_names


def types_of(columns: Columns) -> dict[str, Any]:
    """Type of each column."""
    if isinstance(columns, DecodedTable):
        return columns.types
    return dict(zip(columns.schema.names, columns.schema.types, strict=True))


def with_paths(table: Columns, paths: Sequence[str]) -> Columns:
    """Add a column for each missing path.

    A field of a null is null.
    """
    # Arrow makes a new list of names for each question: for 100 columns these took 4 ms a row group.
    known = set(names_of(table))
    for path in paths:
        if path in known or (top := top_column(path, known)) is None:
            continue
        kind = type_at(path, top, table[top].type)
        chunks = table[top].chunks
        for step in steps_of(path, top):
            chunks = [_take_step(chunk, step) for chunk in chunks]
        column = pa.chunked_array(chunks, kind)
        if isinstance(table, DecodedTable):
            table = table.with_columns({path: column}, [*table.names, path])
        else:
            table = table.append_column(path, column)
        known.add(path)
    return table


def _take_step(array: pa.Array, step: str) -> pa.Array:
    if pa.types.is_struct(array.type):
        return pc.struct_field(array, [step])
    if pa.types.is_map(array.type):
        values = array.keys if step == "keys" else array.items
    else:
        values = _take_step(array.values, step)
    # Copied: Arrow takes no mask beside offsets that are a slice.
    offsets = pa.array(array.offsets.to_numpy())
    kind = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
    return kind.from_arrays(offsets, values, mask=pc.is_null(array))


DECODE_ERRORS = (OSError, MemoryError, pa.ArrowException)
"""Errors of decoding. pyarrow has no type of its own for bad pages."""


def decode(pages: Pages) -> DecodedTable:
    """Decode pages to a table in the calling thread.

    Raises one of `DECODE_ERRORS`, and `TimeOutOfRange`.
    """
    there = pages.footer.columns
    _check_flat(pages)
    # A path into a struct is decoded as its column, with the fields that were fetched.
    top_of = there.tops(pages.columns)
    columns = tuple(dict.fromkeys(top_of.values()))
    numbers, others, texts = decode_numbers(pages), decode_lists(pages), decode_texts(pages)
    ours = numbers.types.keys() | others.keys() | texts.keys()
    left = dict.fromkeys(name for name in columns if name not in ours)
    if left or not columns:
        table = _decode_rest(pages, [name for name, top in top_of.items() if top in left], list(left))
        if not ours:
            return DecodedTable(columns, table)
        others |= dict(zip(left, table.columns, strict=True))
    fields = [there.schema.field(name).with_type(column.type) for name, column in others.items()]
    rest = pa.table(list(others.values()), pa.schema(fields, there.schema.metadata))
    has_rows = numbers.types or texts
    return DecodedTable(columns, rest, numbers=numbers if has_rows else None, texts=texts, there=there)


def _check_flat(pages: Pages) -> None:
    """Check that columns without lists have as many entries as rows.

    Arrow would decode the rows, and leave other entries out. Raises `pa.ArrowInvalid`.
    """
    columns, rows = pages.footer.columns, pages.footer.metadata.row_group(pages.index).num_rows
    wrong = np.flatnonzero((pages.num_values != rows) & columns.is_flat[list(pages.leaves)])
    if len(wrong):
        first = int(wrong[0])
        raise pa.ArrowInvalid(
            f"its footer states {rows} rows, and {pages.num_values[first]} values of column "
            f"{columns.path(pages.leaves[first])!r}"
        )


def _check_pages(pages: Pages, columns: list[str]) -> None:
    """Check that pages hold no more values than the footer states.

    Arrow would leave them out. Raises `pa.ArrowInvalid`. Checks nothing in a process that has not loaded the kernels.
    """
    if pages.footer.codecs is None:
        return
    there, wanted, sizes = pages.footer.columns, set(columns), pages.ranges[:, 1] - pages.ranges[:, 0]
    for k, address in enumerate(pages.file.addresses(pages.ranges).tolist()):
        leaf = pages.leaves[k]
        if address and there.top_of(leaf) in wanted:
            found = kernels.count_values(address, int(sizes[k]))
            if found > pages.num_values[k]:
                raise pa.ArrowInvalid(
                    f"column {there.path(leaf)!r} has {found} values in its pages, but {pages.num_values[k]} in its "
                    "footer"
                )


def _decode_rest(pages: Pages, paths: list[str], columns: list[str]) -> pa.Table:
    """Table of `columns`, decoded by Arrow, and checked."""
    _check_pages(pages, columns)
    table = _as_stored(_decode_by_arrow(pages, paths).select(columns), pages.footer.columns)
    _validate_values(table)
    rows = pages.footer.metadata.row_group(pages.index).num_rows
    if columns and table.num_rows != rows:
        raise pa.ArrowInvalid(f"its pages hold {table.num_rows} rows, but its footer states {rows}")
    if any(pages.footer.columns.has_lists(name) for name in columns):
        check_num_values(table, pages)
    if times := pages.footer.columns.times_of_96_bits.intersection(pages.leaves):
        tops = {pages.footer.columns.top_of(leaf) for leaf in times}.intersection(columns)
        again = [path for path in paths if top_column(path, tops)]
        check_times(table, _decode_by_arrow(pages, again, int96_unit="s").select(sorted(tops)), pages)
    return table


def _validate_values(table: pa.Table) -> None:
    """Find what the decoder does not check.

    Text that is not UTF-8, and dictionary indices out of range. Raises `pa.ArrowInvalid` with the column.
    """
    table.validate()
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"column {name!r}: {error}") from error


def _as_stored(table: pa.Table, there: ParquetColumns) -> pa.Table:
    """Table without types that Python code registered."""
    for index, found in enumerate(table.schema):
        if has_registered_type(found.type):
            kind = _held_type(there.schema.field(found.name).type, found.type)
            table = table.set_column(index, found.with_type(kind), cast_to(table.column(index), kind))
    return table


def _held_type(kind: pa.DataType, found: pa.DataType) -> pa.DataType:
    """Type without the fields of structs that were not read."""
    found = found.storage_type if isinstance(found, pa.ExtensionType) else found
    if not (pa.types.is_struct(kind) and pa.types.is_struct(found)):
        return kind
    types = {field.name: field.type for field in found}
    held = [field for field in kind if field.name in types]
    return pa.struct([field.with_type(_held_type(field.type, types[field.name])) for field in held])


def _decode_by_arrow(pages: Pages, paths: list[str], int96_unit: str | None = None) -> pa.Table:
    parquet = pq.ParquetFile(
        pages.file,
        metadata=pages.footer.metadata,
        pre_buffer=False,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit=int96_unit,
    )
    return parquet.read_row_group(pages.index, columns=paths, use_threads=False)


def is_too_much_nested_text(error: BaseException) -> bool:
    """Whether an error means too much nested text.

    Arrow does not decode more than 2 GiB of text of a nested column into one array.
    """
    return isinstance(error, pa.ArrowNotImplementedError) and "chunked array outputs" in str(error)


def nested_columns(pages: Pages) -> tuple[str, ...]:
    """Fetched columns that are lists, maps or structs."""
    schema = pages.footer.columns.schema
    return tuple(name for name in pages.columns if pa.types.is_nested(schema.field(name).type))
