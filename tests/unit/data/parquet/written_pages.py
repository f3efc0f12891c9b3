"""Tables written to Parquet files, and their fetched pages."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.data.parquet.fetch import Pages, fetch
from forebay.data.parquet.footer import Footer, decode_footer, fetch_footer, read_codecs


def footer_of(path: Path) -> Footer:
    """Footer of a file, as a reader of row groups has it."""
    with pa.OSFile(str(path)) as file:
        content = fetch_footer(str(path), file)
    metadata = decode_footer(str(path), content)
    return Footer(metadata, read_codecs(content, metadata))


def fetched(path: Path, index: int = 0) -> tuple[Pages, pa.Table]:
    """Pages of all columns of a row group, and what Arrow decodes from them."""
    parquet = pq.ParquetFile(path)
    with pa.OSFile(str(path)) as file:
        pages = fetch(file, footer_of(path), index, parquet.schema_arrow.names, local=True)
    return pages, parquet.read_row_group(index)


def written(folder: Path, table: pa.Table, **options: object) -> Path:
    """File of a table, by Snappy unless the options of `pq.write_table` say otherwise."""
    pq.write_table(table, folder / "a.parquet", **{"compression": "snappy", **options})
    return folder / "a.parquet"
