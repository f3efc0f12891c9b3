"""Source of rows that a URI names."""

from __future__ import annotations

from forebay.data.sources.scan import scan
from forebay.errors import NoFiles
from forebay.llm.score.source.parquet_rows import ManifestRows
from forebay.llm.score.source.row_source import RowSource
from forebay.llm.score.source.text_rows import count_text_rows
from forebay.llm.source.hub_data import HUB
from forebay.llm.source.text_files import find_text_files

_TEXT = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".arrow")


def find_source(data: str) -> RowSource:
    """Rows of Parquet files, of JSON Lines (also `.gz` and `.zst`), of a folder of the `datasets` library, or of a
    dataset of the Hub (`hf:NAME`).

    Raises as `scan` and `find_text_files`, and `InvalidOption` for data without rows.
    """
    if data.startswith(HUB) or data.endswith(_TEXT):
        return _text_source(data)
    try:
        return ManifestRows(scan(data))
    except NoFiles as error:
        # A folder without Parquet may hold text.
        try:
            return _text_source(data)
        except NoFiles:
            raise error from None


def _text_source(data: str) -> RowSource:
    found = find_text_files(data)
    if found.format == "parquet":
        return ManifestRows(scan([file.uri for file in found.files]))
    return count_text_rows(data, found)
