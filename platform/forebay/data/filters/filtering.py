"""Apply deletions and a row filter to a manifest.

Reads the filter's columns once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from forebay.data.filters.where import Where
from forebay.data.manifest.manifest import Field, Manifest
from forebay.data.manifest.row_mask import KeptRows, RowMask
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import NoFiles
from forebay.runtime.threads import each_in_threads

_MOST_THREADS = 8
_KEPT = "kept"
Progress = Callable[[int, int], None]


class CandidateRows(NamedTuple):
    """Rows that a filter may keep.

    For each row group of a manifest.

    `live` has one bool [rows] for each row group: False for rows that a table has deleted, None for all True.
    `may_match` is False for row groups whose statistics show that no row matches, bool [row groups]. They are not read.
    """

    live: Sequence[NDArray[np.bool_] | None]
    may_match: NDArray[np.bool_]


def masked(
    manifest: Manifest,
    rows: CandidateRows,
    where: Where | None,
    fields: tuple[Field, ...],
    *,
    make_reader: Callable[[Manifest], RowGroupReader],
    progress: Progress | None,
) -> Manifest:
    """Manifest of the rows that match `where` and are not deleted.

    Reads the filter's columns once.

    Args:
        manifest: Row groups of all rows.
        rows: Rows of the row groups that may be kept.
        where: Filter, or None for no filter.
        fields: Columns of the filter, also columns of which it compares a field.
        make_reader: Makes the reader of the filter's columns.
        progress: Called with (row groups done, their number), from the calling thread.

    Raises:
        NoFiles: No row is left.
        CorruptFile, SourceChanged, ReadFailed: A row group cannot be read.
    """
    if where is None and all(mask is None for mask in rows.live):
        return manifest
    masks = [manifest.keeps(index) if mask is None else mask for index, mask in enumerate(rows.live)]
    num_live = sum(int(mask.sum()) for mask in masks)
    if where is not None:
        probe = replace(manifest, columns=tuple(field.name for field in fields), fields=fields)
        reader = make_reader(probe)
        masks = _filtered(masks, reader, where, rows.may_match, progress)
    num_kept = sum(int(mask.sum()) for mask in masks)
    if not num_kept:
        reason = "all are deleted" if where is None else f"where={where.text!r} keeps none of {num_live} rows"
        raise NoFiles(f"{manifest.root}: {reason}. Loosen the filter, or choose another version of the table.")
    kept = KeptRows(
        mask=RowMask.of([]),
        where="" if where is None else where.text,
        deleted_rows=int(manifest.rows.sum()) - num_live,
        filtered_rows=num_live - num_kept,
    )
    return with_masks(manifest, masks, kept)


def with_masks(manifest: Manifest, masks: Sequence[NDArray[np.bool_]], kept: KeptRows) -> Manifest:
    """Manifest of the rows where `masks` are true.

    One bool [rows] for each row group. At least one is true.

    `kept` has the reasons, and its mask is replaced.
    """
    found = replace(kept, mask=RowMask.of([mask for mask in masks if mask.any()]))
    return replace(replace(manifest, kept=None).take(np.array([mask.any() for mask in masks])), kept=found)


def judged(
    masks: Sequence[NDArray[np.bool_]], mask_of: Callable[[int], NDArray[np.bool_]], progress: Progress | None
) -> list[NDArray[np.bool_]]:
    """Compute the mask of each row group in threads.

    `mask_of` is not called for row groups without rows.
    """
    found: dict[int, NDArray[np.bool_]] = {}
    for index, mask in each_in_threads(
        lambda index: mask_of(index) if masks[index].any() else masks[index],
        range(len(masks)),
        most=_MOST_THREADS,
        name="forebay-filter",
    ):
        found[index] = mask
        if progress is not None:
            progress(len(found), len(masks))
    return [found[index] for index in range(len(masks))]


def _filtered(
    masks: Sequence[NDArray[np.bool_]],
    reader: RowGroupReader,
    where: Where,
    may_match: NDArray[np.bool_],
    progress: Progress | None,
) -> list[NDArray[np.bool_]]:
    def mask_of(index: int) -> NDArray[np.bool_]:
        if not may_match[index]:
            return np.zeros_like(masks[index])
        uri = reader.manifest[index].uri
        return masks[index] & _matches(where, reader.decode(reader.fetch(index, where.columns)), uri)

    return judged(masks, mask_of, progress)


def _matches(where: Where, table: pa.Table, uri: str) -> NDArray[np.bool_]:
    expression = where.expression({field.name: field.type for field in table.schema}, uri)
    scanner = ds.dataset(table).scanner(columns={_KEPT: expression}, use_threads=False)
    found: NDArray[np.bool_] = pc.fill_null(scanner.to_table()[_KEPT], False).to_numpy()
    return found
