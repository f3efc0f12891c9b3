"""Applies deletions of a table and a row filter to a manifest: reads the filter's columns once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.errors import NoFiles
from forebay.manifest.manifest import Field, Manifest
from forebay.manifest.reading import RowGroupReader
from forebay.manifest.rows.row_mask import KeptRows, RowMask
from forebay.manifest.rows.where import Where
from forebay.storage.retry import ReadPolicy

_MOST_THREADS = 8
_NUMBER = "row number"
Progress = Callable[[int, int], None]
Masks = Sequence["NDArray[np.bool_] | None"]


def without_deleted(manifest: Manifest, live: Masks) -> Manifest:
    """Manifest of the rows that a table has not deleted. `live` has one bool [rows] for each row group, or None for
    all.
    """
    if all(mask is None for mask in live):
        return manifest
    masks = [
        np.ones(rows, dtype=np.bool_) if mask is None else mask
        for mask, rows in zip(live, manifest.rows.tolist(), strict=True)
    ]
    deleted = sum(int((~mask).sum()) for mask in masks)
    if deleted == manifest.num_rows:
        raise NoFiles(f"{manifest.root}: all {deleted} rows are deleted. Choose another version of the table.")
    return _masked(manifest, masks, where="", deleted_rows=deleted, filtered_rows=0)


def filtered(
    manifest: Manifest,
    where: Where,
    fields: tuple[Field, ...],
    *,
    may_match: NDArray[np.bool_],
    policy: ReadPolicy,
    progress: Progress | None,
) -> Manifest:
    """Manifest of the rows of `manifest` for which `where` is true. Reads each of its row groups once.

    Args:
        manifest: Row groups, which may leave out rows that a table has deleted.
        where: Filter.
        fields: Columns of the filter.
        may_match: False for row groups whose statistics show that no row matches, bool [row groups]. They are not read.
        policy: Attempts, deadline and waits of each read.
        progress: Called with (row groups done, their number), from the calling thread.

    Raises:
        NoFiles: The filter leaves no row.
        CorruptFile, SourceChanged, ReadFailed: A row group cannot be read.
    """
    all_rows = manifest.num_rows
    manifest = manifest.take(may_match)
    probe = replace(manifest, columns=where.columns, fields=fields, kept=None)
    reader = RowGroupReader(probe, policy)
    before = manifest.kept

    def mask_of(index: int) -> NDArray[np.bool_]:
        found = _matches(where, reader.decode(reader.fetch(index)), manifest[index].uri)
        return found & before.mask.keeps(index) if before else found

    masks: list[NDArray[np.bool_]] = []
    pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="forebay-filter")
    try:
        for mask in pool.map(mask_of, range(len(manifest))):
            masks.append(mask)
            if progress is not None:
                progress(len(masks), len(manifest))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    kept = sum(int(mask.sum()) for mask in masks)
    if not kept:
        raise NoFiles(
            f"{manifest.root}: where={where.text!r} keeps none of {all_rows} rows. Loosen it, or check its values.",
            where=where.text,
        )
    return _masked(
        manifest,
        masks,
        where=where.text,
        deleted_rows=before.deleted_rows if before else 0,
        filtered_rows=all_rows - kept,
    )


def _matches(where: Where, table: pa.Table, place: str) -> NDArray[np.bool_]:
    kinds = {field.name: field.type for field in table.schema}
    expression: pc.Expression = where.expression(kinds, place)
    found = np.zeros(table.num_rows, dtype=np.bool_)
    name = _NUMBER
    while name in kinds:
        name += "_"
    numbered = table.append_column(name, pa.array(np.arange(table.num_rows)))
    found[numbered.filter(expression)[name].to_numpy()] = True
    return found


def _masked(
    manifest: Manifest, masks: Sequence[NDArray[np.bool_]], *, where: str, deleted_rows: int, filtered_rows: int
) -> Manifest:
    """Manifest with these masks, without the row groups of which no row is left."""
    some = np.array([bool(mask.any()) for mask in masks], dtype=np.bool_)
    left = replace(manifest, kept=None).take(some)
    mask = RowMask.of([mask for mask in masks if mask.any()])
    kept = KeptRows(mask=mask, where=where, deleted_rows=deleted_rows, filtered_rows=filtered_rows)
    return replace(left, kept=kept)
