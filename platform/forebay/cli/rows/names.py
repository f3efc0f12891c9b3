"""Names of rows and windows: in tables, in JSON, and in skip lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay.data.manifest.file_rows import FileRow
from forebay.data.manifest.file_windows import FileWindow

Names = Sequence[FileRow | FileWindow]
_SPANS = 2
"""Spans of a window in a table. JSON has all of them."""


def name_text(row: FileRow | FileWindow) -> str:
    """Name for a table. Of a window of interleaved series, its first spans and the number of the others."""
    if isinstance(row, FileRow) or len(row.spans) <= _SPANS:
        return str(row)
    return f"{FileWindow(row.spans[:_SPANS])} and {len(row.spans) - _SPANS} more"


def name_facts(row: FileRow | FileWindow) -> dict[str, Any]:
    """Name and its parts for JSON."""
    if isinstance(row, FileRow):
        return {"name": str(row), **row._asdict()}
    spans = [{name: value for name, value in span._asdict().items() if name != "source"} for span in row.spans]
    return {"name": str(row), "spans": spans, "source": row.source}


def name_lines(rows: Names) -> str:
    """Names of all rows, and of the spans of all windows, one a line."""
    names = [[str(row)] if isinstance(row, FileRow) else list(map(str, row.spans)) for row in rows]
    return "".join(f"{name}\n" for each in names for name in each)
