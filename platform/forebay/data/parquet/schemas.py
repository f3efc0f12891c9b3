"""Schemas of files, and whether they agree."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.data.manifest.manifest import Field
from forebay.data.parquet.type_promotion import common_type, is_read_as, is_same_parquet_type, type_of_table
from forebay.errors import CorruptFile, InvalidOption, MissingColumn, MixedSchemas
from forebay.runtime.formatting import near_names

_MOST_LISTED = 20
_OF_SCHEMAS = (ValueError, TypeError, AttributeError, LookupError, OverflowError)
"""Errors of pyarrow's Python code for a schema that its C++ code accepts, such as a map with keys of type null."""


@dataclass(frozen=True, slots=True)
class FileSchema:
    """Columns of one file, in its order."""

    uri: str
    fields: tuple[Field, ...]

    def find(self, column: str) -> Field | None:
        """Column of that name, or None."""
        return next((field for field in self.fields if field.name == column), None)


def read_schema(uri: str, footer: pq.FileMetaData) -> pa.Schema:
    """Arrow schema in a footer.

    Raises `CorruptFile` if Arrow cannot read the schema.
    """
    try:
        schema = arrow_schema(footer)
        fields_of(schema)  # a name may be no text
    except (pa.ArrowException, OSError, *_OF_SCHEMAS) as error:
        raise CorruptFile(
            f"{uri} is corrupt, or has a type that Arrow does not read: its schema cannot be read ({error}). Write the "
            "file again, or leave it out.",
            uri=uri,
        ) from error
    return schema


def arrow_schema(footer: pq.FileMetaData) -> pa.Schema:
    """Arrow schema in a footer, equal in all processes.

    Python code registers extension types, such as Ray Data the type of its tensors, and other processes read what is
    stored. So do all.

    Raises as pyarrow for a type that Arrow does not read.
    """
    schema = footer.schema.to_arrow_schema()
    if not any(map(has_registered_type, schema.types)):
        return schema
    paths = [tuple(footer.schema.column(leaf).path.split(".")) for leaf in range(footer.num_columns)]
    fields = [field.with_type(_stored_type(field.type, (field.name,), paths)) for field in schema]
    return pa.schema(fields, schema.metadata)


def has_registered_type(kind: pa.DataType) -> bool:
    """Whether a type is, or has at any depth, one that Python code registered."""
    if isinstance(kind, pa.BaseExtensionType):
        return isinstance(kind, pa.ExtensionType)
    return any(has_registered_type(kind.field(index).type) for index in range(kind.num_fields))


def _stored_type(kind: pa.DataType, path: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> pa.DataType:
    """Type that a process reads which knows no registered type.

    `path` leads to it, and `paths` to each column chunk. They have the names of the items of lists.
    """
    if isinstance(kind, pa.ExtensionType):
        return _stored_type(kind.storage_type, path, paths)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored_type(field.type, (*path, field.name), paths)) for field in kind])
    build = next((build for is_kind, build in _LISTS if is_kind(kind)), None)
    if build is None:
        return kind
    depth = len(path) + 1
    steps = next((each[len(path) : depth + 1] for each in paths if each[: len(path)] == path and len(each) > depth), ())
    item = kind.value_field.with_type(_stored_type(kind.value_type, (*path, *steps), paths))
    return build(item.with_name(steps[-1]) if steps else item, kind)


_LISTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Field, pa.DataType], pa.DataType]], ...] = (
    (pa.types.is_list, lambda item, _: pa.list_(item)),
    (pa.types.is_large_list, lambda item, _: pa.large_list(item)),
    (pa.types.is_fixed_size_list, lambda item, kind: pa.list_(item, kind.list_size)),
)


def fields_of(schema: pa.Schema) -> tuple[Field, ...]:
    """Columns of a schema, with their types as text."""
    return tuple(Field(name=field.name, type=str(field.type), nullable=field.nullable) for field in schema)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Selected columns of all files.

    `promoted` has the types in files of each column that some files hold with another type than `fields`.
    """

    fields: tuple[Field, ...]
    promoted: Mapping[str, tuple[str, ...]]

    @property
    def types(self) -> dict[str, str]:
        """Type of each promoted column."""
        return {field.name: field.type for field in self.fields if field.name in self.promoted}


_NO_TABLE: Mapping[str, Field] = {}


def agree(
    schemas: Sequence[FileSchema], columns: Sequence[str] | None, table: Mapping[str, Field] = _NO_TABLE
) -> Agreement:
    """Selected columns, checked over all files.

    All files must have them. Their order within a file does not matter, and of their types only the Parquet type does.
    A column with several types has the one that holds all values, and in a lake table that of the table.

    Args:
        schemas: At least one.
        columns: The selection, in order. None for all columns of the first file; then no file may have more.
        table: Columns of the lake table by name. Empty for plain files.

    Raises:
        MissingColumn: No file has a selected column.
        MixedSchemas: Two files disagree on a selected column, or one has it twice.
    """
    first = schemas[0]
    names = [field.name for field in first.fields] if columns is None else list(columns)
    known: dict[tuple[Field, ...], FileSchema] = {}
    # Files of one layout share one tuple, whose hash takes longer than all else.
    first_of: dict[int, FileSchema] = {}
    for schema in schemas:
        first_of.setdefault(id(schema.fields), schema)
    for schema in first_of.values():
        known.setdefault(schema.fields, schema)
    distinct = list(known.values())
    if columns is None:
        names += sorted({field.name for schema in distinct for field in schema.fields} - set(names))
    for schema in distinct:
        _refuse_twice(schema, set(names))
    fields: list[Field] = []
    promoted: dict[str, tuple[str, ...]] = {}
    for name in names:
        holders = _holders(name, distinct)
        types = tuple(sorted({field.type for _, field in holders}))
        kind = _type_of(name, types, holders, table.get(name))
        fields.append(Field(name=name, type=kind, nullable=any(field.nullable for _, field in holders)))
        if types != (kind,):
            promoted[name] = types
    return Agreement(tuple(fields), promoted)


Holders = list[tuple[FileSchema, Field]]


def _holders(name: str, schemas: list[FileSchema]) -> Holders:
    """Files of each layout, with their column `name`."""
    found = [(schema, schema.find(name)) for schema in schemas]
    holders = [(schema, field) for schema, field in found if field is not None]
    if not holders:
        raise missing_column(name, [field.name for field in schemas[0].fields], schemas[0].uri)
    for schema, field in found:
        if field is None:
            raise _mixed(name, holders[0], (schema, None))
    return holders


def _type_of(name: str, types: tuple[str, ...], holders: Holders, declared: Field | None) -> str:
    if declared is None:
        common = common_type(types)
        if common is None:
            one, other = next(pair for pair in itertools.combinations(holders, 2) if not _share(*pair))
            raise _mixed(name, one, other)
        return common
    # Unchanged: another type would be another dataset for runs that trained on these files.
    if len(types) == 1 and is_same_parquet_type(types[0], declared.type):
        return types[0]
    for schema, field in holders:
        if not is_read_as(field.type, declared.type):
            raise MixedSchemas(
                f"Column {name!r} is {field.type} in {schema.uri}, which is not read as {declared.type}, the type that "
                "the table has. Rewrite that file of the table, or leave the column out (columns=[...]).",
                column=name,
                files=(schema.uri,),
                types=(field.type, declared.type),
            )
    return type_of_table(declared.type)


def _share(one: tuple[FileSchema, Field], other: tuple[FileSchema, Field]) -> bool:
    return common_type((one[1].type, other[1].type)) is not None


def _mixed(name: str, one: tuple[FileSchema, Field], other: tuple[FileSchema, Field | None]) -> MixedSchemas:
    types = one[1].type, other[1].type if other[1] else None
    found = f"is {types[1]}" if types[1] else "is absent"
    return MixedSchemas(
        f"Column {name!r} is {types[0]} in {one[0].uri}, but {found} in {other[0].uri}. Write the files with one "
        "schema, or apart, or select columns that they share (columns=[...] of fb.scan).",
        column=name,
        files=(one[0].uri, other[0].uri),
        types=types,
    )


def _refuse_twice(schema: FileSchema, names: set[str]) -> None:
    seen: set[str] = set()
    for field in schema.fields:
        if field.name in seen and field.name in names:
            raise MixedSchemas(
                f"{schema.uri} has two columns {field.name!r}. Rename one, or select others (columns=[...] of "
                "fb.scan).",
                column=field.name,
                files=(schema.uri,),
            )
        seen.add(field.name)


def selected_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names in an option `columns`, each once.

    A text is one name, and None stays None. Raises `InvalidOption`.
    """
    if columns is None:
        return None
    if isinstance(columns, AbstractSet):
        raise InvalidOption(f"columns={columns!r} has no order, and every process would make another one. Give a list.")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names or len(set(names)) < len(names):
        raise InvalidOption(f"columns={columns!r}: select at least one column, and each once; None selects all.")
    return names


def missing_column(name: str, there: Sequence[str], where: str) -> MissingColumn:
    """Error for a missing column `name` of `where`.

    It lists the columns and suggests similar names.
    """
    listed = ", ".join(there[:_MOST_LISTED]) + (", ..." if len(there) > _MOST_LISTED else "")
    meant_column = name.split(".", maxsplit=1)[0]  # the name may be a path
    close = near_names(name, there) or near_names(meant_column, there)
    meant = f"Did you mean {' or '.join(map(repr, close))}?" if close else "Choose among these, or add it to the files."
    return MissingColumn(
        f"There is no column {name!r} among the {len(there)} columns of {where}: {listed}. {meant}",
        column=name,
        columns=tuple(there),
        close=tuple(close),
    )


def leaves_of(paths: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Return the indices of the chunks of `columns`.

    They are found by their paths.

    Chunks of a list or a struct have dotted paths.
    """
    wanted = set(columns)
    return [leaf for leaf, path in enumerate(paths) if path in wanted or _prefixes(path) & wanted]


def _prefixes(path: str) -> set[str]:
    parts = path.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}
