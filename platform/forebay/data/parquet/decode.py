"""Decodes fetched pages to a table. Only bad content can make that fail."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.data.parquet.decoded_table import DecodedTable
from forebay.data.parquet.fetch import Pages
from forebay.data.parquet.list_columns import decode_lists
from forebay.data.parquet.numbers import decode_numbers
from forebay.data.parquet.text_columns import decode_texts

DECODE_ERRORS = (OSError, MemoryError, pa.ArrowException)
"""Errors of decoding. pyarrow has no type of its own for bad pages."""


def decode(pages: Pages) -> DecodedTable:
    """Decode the table in the calling thread. Raises one of `DECODE_ERRORS`."""
    there = pages.footer.columns
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


def _decode_rest(pages: Pages, paths: list[str], columns: list[str]) -> pa.Table:
    """Table of `columns`, decoded by Arrow, and checked."""
    table = _decode_by_arrow(pages, paths).select(columns)
    # Finds what the decoder does not check: text that is not UTF-8, and dictionary indices out of range.
    table.validate(full=True)
    rows = pages.footer.metadata.row_group(pages.index).num_rows
    if columns and table.num_rows != rows:
        raise pa.ArrowInvalid(f"its pages hold {table.num_rows} rows, but its footer states {rows}")
    return table


def _decode_by_arrow(pages: Pages, paths: list[str]) -> pa.Table:
    parquet = pq.ParquetFile(
        pages.file, metadata=pages.footer.metadata, pre_buffer=False, page_checksum_verification=True
    )
    return parquet.read_row_group(pages.index, columns=paths, use_threads=False)


def is_too_much_nested_text(error: BaseException) -> bool:
    """Whether decoding failed because the text of a nested column does not fit into one array of Arrow (2 GiB)."""
    return isinstance(error, pa.ArrowNotImplementedError) and "chunked array outputs" in str(error)


def nested_columns(pages: Pages) -> tuple[str, ...]:
    """Fetched columns that are lists, maps or structs."""
    schema = pages.footer.columns.schema
    return tuple(name for name in pages.columns if pa.types.is_nested(schema.field(name).type))
