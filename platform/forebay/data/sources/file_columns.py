"""Facts of one scanned file.

Its columns, the columns that it does not hold, and its row groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.filters.operands import ColumnKinds, Constant, Stored
from forebay.data.manifest.manifest import Field
from forebay.data.parquet.arrow_types import constant_scalar, has_nulls, parse_type
from forebay.data.parquet.schemas import FileSchema
from forebay.data.sources.dataset_files import SourceFile, Sources
from forebay.data.sources.field_ids import FieldIds
from forebay.data.sources.partitions import Values
from forebay.errors import CorruptFile, InvalidOption, LimitReached
from forebay.storage.versions import FoundFile


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Columns of one file.

    `schema` also has the `constants`, but no `absent` column. `stored` as in `File`.
    """

    schema: FileSchema
    constants: Values = ()
    absent: tuple[Field, ...] = ()
    stored: tuple[tuple[str, str, str], ...] = ()

    def names_in_file(self, columns: Sequence[str]) -> list[str]:
        """Names of the columns in the file."""
        there = {name: name_there for name, name_there, _ in self.stored}
        return [there.get(name, name) for name in columns]

    def kinds(self, schema: pa.Schema) -> ColumnKinds:
        """Columns of the file for a row filter.

        The file's own columns are `schema`.
        """
        names = {field.name for field in self.schema.fields}
        in_file = {field.name: field.type for field in schema}
        found: dict[str, pa.DataType | Stored | Constant] = {n: kind for n, kind in in_file.items() if n in names}
        types = {field.name: field.type for field in self.schema.fields}
        found |= {name: Stored(there, in_file[there], parse_type(types[name])) for name, there, _ in self.stored}
        found |= {name: Constant(constant_scalar(types[name], text)) for name, text in self.constants if name in types}
        return found | {field.name: Constant(constant_scalar(field.type, None)) for field in self.absent}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scanned:
    """Facts of one footer.

    `groups` is int64 [6, n]: number, rows, bytes, source bytes and first row of each row group, and 0 if the filter is
    true for none of its rows according to its statistics. `deleted` are spans of rows of the file.
    """

    file: FoundFile
    columns: FileColumns
    num_rows: int
    groups: NDArray[np.int64]
    deleted: NDArray[np.int64] | None

    @property
    def schema(self) -> FileSchema:
        """Columns of the file, and its constants."""
        return self.columns.schema

    @property
    def has_rows(self) -> bool:
        """Whether any row group has rows."""
        return bool(self.groups.shape[1])

    def live(self) -> Iterator[NDArray[np.bool_] | None]:
        """Mask of the rows of each row group that are not deleted.

        bool [rows], or None for all. Raises `CorruptFile`, `LimitReached`.
        """
        if self.deleted is None or not len(self.deleted):
            yield from [None] * self.groups.shape[1]
            return
        starts, stops = self.deleted.T
        if starts.min() < 0 or starts.max() >= self.num_rows or stops.max() > self.num_rows:
            last = max(starts.max(), stops.max() - 1)
            raise CorruptFile(
                f"{self.file.uri} has {self.num_rows} rows, but its table deletes row {last}. Rewrite the files of "
                "the table, and scan the new version.",
                uri=self.file.uri,
            )
        try:
            mask = np.ones(self.num_rows, dtype=np.bool_)
        except MemoryError as error:
            raise LimitReached(
                f"{self.file.uri} claims {self.num_rows} rows in {self.file.size} bytes, and the mask of its deleted "
                "rows exceeds the memory. Rewrite the files of the table, and scan the new version.",
                uri=self.file.uri,
                rows=self.num_rows,
            ) from error
        are_longer = stops - starts > 1
        mask[starts[~are_longer]] = False
        for start, stop in self.deleted[are_longer].tolist():
            mask[start:stop] = False
        for rows, first in self.groups[[1, 4]].T.tolist():
            yield mask[first : first + rows]


def file_columns(
    source: SourceFile,
    fields: tuple[Field, ...],
    sources: Sources,
    selected: Collection[str] | None,
    schema: pa.Schema | None = None,
) -> FileColumns:
    """Return the columns of a scanned file.

    Its footer has `fields`. A table of field ids needs its Arrow `schema`, too.

    Raises `InvalidOption` if a selected partition column of plain files is also in the file, or if a selected column of
    a table cannot be read as the table has it now.
    """
    if sources.ids is not None and sources.table is not None:
        assert schema is not None, "the ids are in the metadata of the schema"
        return _by_id(source, schema, sources.ids, sources.table, selected)
    if sources.table is not None:
        return _by_name(source, fields, sources, sources.table, selected)
    return _of_plain_file(source, fields, sources, selected)


def _of_plain_file(
    source: SourceFile, fields: tuple[Field, ...], sources: Sources, selected: Collection[str] | None
) -> FileColumns:
    uri, constants = source.file.uri, source.constants
    if not constants:
        return FileColumns(FileSchema(uri, fields))
    twice = {field.name for field in fields} & {name for name, _ in constants}
    for name in sorted(twice if selected is None else twice & set(selected)):
        raise InvalidOption(
            f"{uri} has a column {name!r}, and so has the name of its folder. Choose other columns "
            "(columns=[...]), or read none from folders (partitions=False).",
            column=name,
            uri=uri,
        )
    constants = tuple(each for each in constants if each[0] not in twice)
    types = {field.name: field for field in sources.partitions}
    return FileColumns(FileSchema(uri, (*fields, *(types[name] for name, _ in constants))), constants)


def _by_name(
    source: SourceFile,
    in_file: tuple[Field, ...],
    sources: Sources,
    table: tuple[Field, ...],
    selected: Collection[str] | None,
) -> FileColumns:
    constants = source.constants
    names = {name for name, _ in constants}
    wanted = {field.name for field in table} - names
    fields = [field for field in in_file if field.name in wanted]
    held = names | {field.name for field in fields}
    types = {field.name: field for field in sources.partitions}
    absent = tuple(field for field in table if field.name not in held)
    _refuse_other_case(source.file.uri, in_file, absent, selected)
    return FileColumns(
        FileSchema(source.file.uri, (*fields, *(types[name] for name, _ in constants))), constants, absent
    )


def _refuse_other_case(
    uri: str, in_file: tuple[Field, ...], absent: tuple[Field, ...], selected: Collection[str] | None
) -> None:
    """Refuse a selected column that a file has in other letters.

    Delta tells columns apart by their letters in any case, and would not take it for one that the file lacks.
    """
    there = {field.name.lower(): field.name for field in in_file}
    for field in absent:
        if field.name.lower() in there and (selected is None or field.name in selected):
            raise InvalidOption(
                f"{uri} has the column {there[field.name.lower()]!r}, which is {field.name!r} in its table. Write the "
                "file again with the name that the table has, or leave the column out (columns=[...]).",
                column=field.name,
                uri=uri,
            )


def _by_id(
    source: SourceFile, schema: pa.Schema, ids: FieldIds, table: tuple[Field, ...], selected: Collection[str] | None
) -> FileColumns:
    uri = source.file.uri
    types = {field.name: field for field in table}
    held, stored = ids.find(uri, schema, types.keys() if selected is None else selected)
    missing = types.keys() - {field.name for field in held}
    texts = {**ids.defaults, **{name: text for name, text in source.constants if text is not None}}
    constants = tuple((name, texts[name]) for name in types if name in missing and name in texts)
    for name, text in constants:
        _check_constant(uri, types[name], text)
    return FileColumns(
        FileSchema(uri, (*held, *(types[name] for name, _ in constants))),
        constants,
        tuple(types[name] for name in types if name in missing and name not in texts),
        stored,
    )


def _check_constant(uri: str, field: Field, text: str) -> None:
    try:
        constant_scalar(field.type, text)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise InvalidOption(
            f"{uri} does not hold the column {field.name!r}, which has the value {text!r:.60} for all its rows. No "
            f"{field.type} is made of that ({error}). Write the file with the column, or leave it out (columns=[...]).",
            column=field.name,
            uri=uri,
        ) from error


def with_absent(scanned: Sequence[Scanned], sources: Sources) -> list[Scanned]:
    """Add the table's absent columns to each file.

    They are null, with the type that other files have.
    """
    if sources.table is None:
        return list(scanned)
    held = {field.name: field for one in reversed(scanned) for field in one.schema.fields}
    return [_completed(one, held) for one in scanned]


def retyped(one: Scanned, types: Mapping[str, str]) -> Scanned:
    """Note the columns that a file holds with another type.

    `types` has the types of the dataset. A column of type null is a constant, so that its pages are not read.
    """
    columns = one.columns
    known = {name for name, *_ in (*columns.constants, *columns.stored)}
    others = [(field.name, field.type) for field in columns.schema.fields if field.name not in known]
    others = [(name, there) for name, there in others if types.get(name, there) != there]
    nulls = tuple((name, None) for name, there in others if there == "null")
    stored = tuple((name, name, there) for name, there in others if there != "null")
    columns = replace(columns, constants=(*columns.constants, *nulls), stored=(*columns.stored, *stored))
    return replace(one, columns=columns)


def _completed(one: Scanned, held: dict[str, Field]) -> Scanned:
    absent = [held.get(field.name, field) for field in one.columns.absent]
    absent = [replace(field, nullable=True) for field in absent if has_nulls(field.type)]
    columns = one.columns
    return replace(
        one,
        columns=replace(
            columns,
            schema=FileSchema(columns.schema.uri, (*columns.schema.fields, *absent)),
            constants=(*columns.constants, *((field.name, None) for field in absent)),
        ),
    )
