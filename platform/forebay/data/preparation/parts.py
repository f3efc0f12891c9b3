"""Files of a prepared dataset, cut by row number.

So only the rows decide the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from forebay.data.manifest.manifest import Field
from forebay.data.manifest.prepared import PreparedFile
from forebay.data.parquet.column_casts import cast_column
from forebay.data.parquet.schemas import fields_of, read_schema
from forebay.data.parquet.type_promotion import is_same_parquet_type
from forebay.errors import MixedSchemas
from forebay.storage.atomic import write_atomically, write_failed
from forebay.storage.filesystem import below

LAYOUT_VERSION = 1
"""Part of every fingerprint. Rises when equal rows would give other files."""
ROW_GROUPS_PER_FILE = 4
"""A file is built in memory before it is written, so it holds few row groups."""


def plain_table(table: pa.Table) -> pa.Table:
    """Drop metadata and dictionaries.

    Both depend on how rows came, not on the rows.
    """
    for index, found in enumerate(table.schema):
        if pa.types.is_dictionary(found.type):
            values = pc.cast(table.column(index), found.type.value_type)
            table = table.set_column(index, pa.field(found.name, values.type, found.nullable), values)
    return table.replace_schema_metadata(None)


def agreeing(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield plain tables of one schema, without empty ones.

    Types that differ in hints of Arrow alone become as in the first table.

    Raises `MixedSchemas` for another schema than the first, and for two columns of one name.
    """
    schema = None
    for number, given in enumerate(tables):
        table = plain_table(given)
        if schema is None:
            _refuse_twice(table.schema)
        schema = schema or table.schema
        if table.schema != schema and _differ_in_hints(table.schema, schema):
            table = _of_types(table, schema)
        if table.schema != schema:
            raise MixedSchemas(
                f"table {number} of the preparation has columns {_columns_text(table.schema)}, and table 0 has "
                f"{_columns_text(schema)}. Cast each table to one schema: table.cast(schema)."
            )
        if table.num_rows:
            yield table


def _refuse_twice(schema: pa.Schema) -> None:
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise MixedSchemas(
            f"table 0 of the preparation has two columns {twice[0]!r}, of which no reader could choose one. Rename one "
            "of them: table.rename_columns(names).",
            column=twice[0],
        )


def _differ_in_hints(one: pa.Schema, other: pa.Schema) -> bool:
    return one.names == other.names and all(
        field.nullable == another.nullable and is_same_parquet_type(str(field.type), str(another.type))
        for field, another in zip(one, other, strict=True)
    )


def _of_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        column if column.type == field.type else cast_column(column, str(field.type))
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(columns, schema)


def cut(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Cut tables again, into `rows` rows each.

    Each has one chunk. The last one may have fewer rows.
    """
    waiting: list[pa.Table] = []
    num_waiting = 0
    for table in tables:
        start = 0
        while num_waiting + table.num_rows - start >= rows:
            taken = rows - num_waiting
            yield pa.concat_tables([*waiting, table.slice(start, taken)]).combine_chunks()
            waiting, num_waiting, start = [], 0, start + taken
        if start < table.num_rows:
            waiting.append(table.slice(start))
            num_waiting += table.num_rows - start
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def write_part(folder: str, number: int, row_groups: Sequence[pa.Table]) -> tuple[PreparedFile, tuple[Field, ...]]:
    """Write one file of `row_groups`.

    Returns it with its columns. Its name holds a hash of its content. So a file is never replaced by another content
    under readers, and two processes that write the same rows write the same file. Page checksums find damage at
    reading.

    Raises `WriteFailed`.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, row_groups[0].schema, compression="zstd", write_page_checksum=True) as writer:
        for table in row_groups:
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
    content = sink.getvalue()
    content_hash = xxhash.xxh3_128_hexdigest(content)
    path = f"part-{number:06d}-{content_hash[:16]}.parquet"
    uri = below(folder, path)
    try:
        write_atomically(uri, content)
    except OSError as error:
        raise write_failed(f"File {number} of the prepared dataset", uri, error) from error
    footer = pq.read_metadata(pa.BufferReader(content))
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    sizes = [[group.column(leaf) for leaf in range(group.num_columns)] for group in groups]
    file = PreparedFile(
        path=path,
        size=content.size,
        content_hash=content_hash,
        rows=tuple(group.num_rows for group in groups),
        bytes=tuple(sum(chunk.total_uncompressed_size for chunk in chunks) for chunks in sizes),
        source_bytes=tuple(sum(chunk.total_compressed_size for chunk in chunks) for chunks in sizes),
    )
    return file, fields_of(read_schema(uri, footer))


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{found.name}: {found.type}" for found in schema)
