"""Skip lists: rows left out by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forebay.data.filters.filtering import with_masks
from forebay.data.manifest.file_rows import FileRow
from forebay.data.manifest.file_windows import FileWindow, RowSpan
from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.row_mask import KeptRows, RowMask
from forebay.errors import InvalidOption, NoFiles

_FORM = (
    "Write each as file:row group:row, such as day=1/a.parquet:3:128 or day=1/a.parquet:3:128..223, which "
    "batch.rows() and `forebay rows` print."
)
_SHOWN = 3
_SPAN = re.compile(r"(.+?):(\d{1,18}):(\d{1,18})(?:\.\.(\d{1,18}))?(?:, |$)", re.ASCII)

RowName = FileRow | RowSpan | FileWindow | str
"""Name of one row, of neighbouring rows, or of the rows of a window."""


def named_spans(name: RowName) -> tuple[RowSpan, ...]:
    """Rows with this name. Raises `InvalidOption` for an unknown name.

    >>> named_spans("s3://lake/day=1/a.parquet:3:128, b.parquet:0:0..7")[1]
    RowSpan(file='b.parquet', row_group=0, first=0, last=7, source='')
    """
    match name:
        case FileRow():
            return (RowSpan(name.file, name.row_group, name.row, name.row),)
        case RowSpan():
            return (name,)
        case FileWindow():
            return name.spans
    parts = list(_SPAN.finditer(name)) if isinstance(name, str) else []
    spans = tuple(RowSpan(each[1], int(each[2]), int(each[3]), int(each[4] or each[3])) for each in parts)
    if not spans or "".join(each[0] for each in parts) != name or any(each.last < each.first for each in spans):
        raise InvalidOption(f"skip= holds {name!r:.200}, which names no row. {_FORM}", name=name)
    return spans


def without_rows(manifest: Manifest, skip: Iterable[RowName], scanned: Manifest | None = None) -> Manifest:
    """Manifest without the rows of a skip list.

    It is `manifest` itself if that has none of them.

    Args:
        manifest: Rows that are left after deletions and a filter.
        skip: Names of rows. The path of a file is below the root, or a whole URI. Of prepared data, it may be the
            beginning by which a stream names it. A row may be named twice.
        scanned: Row groups of all rows, before the filter: a name must be one of its rows. By default `manifest`.

    Raises:
        InvalidOption: A name that is not of a row of `scanned`.
        NoFiles: No row is left.
    """
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        found = "one text" if isinstance(skip, str) else "no list"
        raise InvalidOption(f"skip={skip!r:.200} is {found}. Give a list of names. {_FORM}", skip=skip)
    rows = _rows_by_group(scanned or manifest, [span for name in skip for span in named_spans(name)])
    masks: dict[int, NDArray[np.bool_]] = {}
    skipped_rows = 0
    for index, key in enumerate(zip(manifest.file_of.tolist(), manifest.group_of.tolist(), strict=True)):
        numbers = rows.get((manifest.files[key[0]].path, key[1]))
        if numbers is None:
            continue
        before = manifest.keeps(index)
        masks[index] = before.copy()
        masks[index][numbers] = False
        skipped_rows += int(before.sum() - masks[index].sum())
    if not skipped_rows:
        return manifest
    if skipped_rows == manifest.num_rows:
        raise NoFiles(f"{manifest.root}: skip= names all {skipped_rows} rows. Leave some out of the list.")
    kept = manifest.kept or KeptRows(mask=RowMask.of([]))
    every = [masks[index] if index in masks else manifest.keeps(index) for index in range(len(manifest))]
    return with_masks(manifest, every, replace(kept, skipped_rows=kept.skipped_rows + skipped_rows))


def _rows_by_group(scanned: Manifest, skip: list[RowSpan]) -> dict[tuple[str, int], list[int]]:
    """Rows of a skip list by file and row group."""
    paths: dict[str, str] = {}
    for name in (scanned.uri_of, lambda file: file.path):
        paths |= {name(file): file.path for file in scanned.files}
    wanted = {(paths.get(row.file, ""), row.row_group) for row in skip}
    counts = zip(scanned.file_of.tolist(), scanned.group_of.tolist(), scanned.rows.tolist(), strict=True)
    sizes = {
        (path, group): rows for file, group, rows in counts if ((path := scanned.files[file].path), group) in wanted
    }
    found: dict[tuple[str, int], list[int]] = {}
    unknown: list[RowSpan] = []
    for row in skip:
        group = paths.get(row.file, ""), row.row_group
        if row.last < sizes.get(group, 0):
            found.setdefault(group, []).extend(range(row.first, row.last + 1))
        else:
            unknown.append(row)
    if unknown:
        named, total = ", ".join(map(str, unknown[:_SHOWN])), sum(span.last - span.first + 1 for span in unknown)
        count = f"{total} row{'s' if total > 1 else ''}"
        raise InvalidOption(
            f"skip= names {count} that {scanned.root} does not have, such as {named}. Give the list to a "
            "scan of the files that it was made of, or remove them from it.",
            unknown=tuple(map(str, unknown)),
        )
    return found


def skip_list(path: str | os.PathLike[str]) -> list[str]:
    """Read names of rows from a local file.

    One a line. Raises `InvalidOption` if it cannot be read.
    """
    try:
        return [line.strip() for line in Path(path).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(
            f"the skip list {os.fspath(path)} cannot be read ({error}). `forebay rows RUN --step N --out FILE` writes "
            "one.",
            path=os.fspath(path),
        ) from error
