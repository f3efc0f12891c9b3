"""Interleaved series, sorted once into a prepared dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.preparation.prepare import prepare
from forebay.data.transform.features.numeric import whole
from forebay.data.transform.features.ragged import list_parts
from forebay.data.windows.index import WindowShape
from forebay.data.windows.series_blocks import PassProgress, Series
from forebay.data.windows.steps import StepColumns, refuse_nulls
from forebay.errors import BadSeries, InvalidOption

ARRANGEMENT_VERSION = "1"
"""Part of the fingerprint. Increased when the same rows give other files."""
ROW_GROUP_ROWS = 65_536

_SHORT_RUNS = 8
"""A window reads more row groups than this if runs are shorter than its part."""
_FIRST_TIME = "forebay_first_time"


def has_short_runs(series: Series, shape: WindowShape) -> bool:
    """Whether sorting would spare reads of row groups.

    Windows over short runs read many row groups. Sorted data has a run per series, and one more per end of a row group:
    series that are short by themselves gain nothing.
    """
    runs, entities = len(series.times), len(series.entities)
    return runs > 2 * entities and series.whole.num_steps / runs < shape.length / _SHORT_RUNS


def arranged_manifest(
    manifest: Manifest, columns: StepColumns, *, into: str, row_group_rows: int | None = None
) -> Manifest:
    """Sort the rows by (entity, time, row), once.

    See `Sequences.arrange`. Rows of list columns are ordered by their first time.
    """
    if columns.entity is None and columns.time is None:
        raise InvalidOption(
            "arrange() sorts by entity and time, and Sequences has neither: without them the order of the files is "
            "the order of the steps. Name a column by entity= or time=."
        )
    time = _FIRST_TIME if columns.is_list and columns.time is not None else columns.time
    if row_group_rows is None:
        row_group_rows = max(manifest.num_rows // len(manifest), 1) if columns.is_list else ROW_GROUP_ROWS
    prepared = prepare(
        arranged,
        into=into,
        key=[name for name in (columns.entity, time) if name is not None],
        row_group_rows=row_group_rows,
        version=ARRANGEMENT_VERSION,
        data=manifest,
        entity=columns.entity,
        time=columns.time,
        first_time=time if time != columns.time else None,
    )
    found = prepared.manifest
    return replace(
        found,
        columns=tuple(name for name in found.columns if name != _FIRST_TIME),
        fields=tuple(field for field in found.fields if field.name != _FIRST_TIME),
    )


def arranged(data: Manifest, entity: str | None, time: str | None, first_time: str | None) -> Iterator[pa.Table]:
    """Yield the row groups of `data`, each read once.

    `first_time` adds a column: the first item of the lists of `time`.
    """
    reader = RowGroupReader(data)
    progress = PassProgress("arranging", data.num_rows)
    for index in range(len(data)):
        table = reader.read(index)
        try:
            _refuse_nulls(table, entity, time, is_list=first_time is not None)
        except BadSeries as error:
            row_group = data[index]
            where = f"row group {row_group.index} of {row_group.uri}"
            raise BadSeries(f"{where}: {error}", **error.facts, row_group=index, uri=row_group.uri) from error
        if first_time is not None:
            table = table.append_column(first_time, _first_items(whole(table[time])))
        yield table
        progress.add(table.num_rows)


def _refuse_nulls(table: pa.Table, entity: str | None, time: str | None, *, is_list: bool) -> None:
    """Raise `BadSeries` for a null entity or time.

    Checked before the sort: afterwards, its row is in another file than the user's.
    """
    if entity is not None:
        refuse_nulls(f"the entity column {entity!r}", whole(table[entity]))
    if time is not None and not is_list:
        refuse_nulls(f"the time column {time!r}", whole(table[time]))


def _first_items(lists: pa.Array) -> pa.Array:
    """First item of each list, null for empty lists."""
    values, starts, lengths = list_parts(lists)
    return values.take(pa.array(starts, mask=lengths == 0))
