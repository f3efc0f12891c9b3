"""Rows that a transform rejects.

They are found, left out of a block, and named in it, so that no reader takes them for data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.decoded_table import Columns, as_table, with_paths
from forebay.data.transform.block import ATTACHED, Block, BlockArray
from forebay.data.transform.features.groups import Label, known_numbers
from forebay.data.transform.features.ragged import LIST_OFFSETS, LIST_VALUES
from forebay.data.transform.transform import Transform
from forebay.errors import ForebayError, TransformFailed, WrongType

REJECTED = f"{ATTACHED}rejected"
"""Attached array of a block: numbers of the rows that its transform rejects, int64 [n]. Their values are 0."""

REFUSALS = (TransformFailed, WrongType)
"""Errors of a transform that may be about some rows only."""


def accepted_rows(transform: Transform, table: pa.Table) -> NDArray[np.bool_]:
    """Whether `transform` accepts each row, bool [rows].

    A pure function of the rows. Labels that are null, NaN or infinite are found in one pass. For other reasons a part
    of the table that is refused is divided in halves, so one rejected row costs about 2 log2(rows) calls.
    """
    accepted = np.ones(table.num_rows, dtype=np.bool_)
    for feature in transform.features.values():
        if isinstance(feature, Label):
            accepted &= known_numbers(with_paths(table, [feature.column])[feature.column])
    parts = [np.flatnonzero(accepted)]
    while parts:
        part = parts.pop()
        if len(part) and not _is_accepted(transform, table, part):
            if len(part) == 1:
                accepted[part] = False
            else:
                parts += np.array_split(part, 2)
    return accepted


def apply_to_kept(transform: Transform, columns: Columns, manifest: Manifest, index: int) -> Block:
    """Transform row group `index` into a block.

    `columns` has all its rows. Rejected rows raise no error if the manifest leaves them out. A block does not depend on
    which rows the manifest keeps, so one in a cache serves every filter. Raises the errors of the transform about rows
    that are kept, with their file and row group.
    """
    keeps = manifest.keeps(index)
    try:
        return transform.apply(columns)
    except REFUSALS as error:
        if keeps.all():
            raise placed(error, manifest, index, keeps) from error.__cause__
    table = as_table(columns)
    try:
        made = transform.apply(table.filter(pa.array(keeps)))  # raises if a row that is kept is rejected
    except REFUSALS as error:
        raise placed(error, manifest, index, keeps) from error.__cause__
    accepted = keeps.copy()
    accepted[~keeps] = accepted_rows(transform, table.filter(pa.array(~keeps)))
    if not np.array_equal(accepted, keeps):
        made = transform.apply(table.filter(pa.array(accepted)))
    arrays = {name: _spread(name, array, accepted) for name, array in made.arrays.items()}
    return Block(table.num_rows, arrays | {REJECTED: np.flatnonzero(~accepted).astype(np.int64)})


def usable(block: Block | None, manifest: Manifest, index: int) -> Block | None:
    """Return the block, if the manifest can use it.

    It belongs to row group `index`. None if a row that the manifest keeps was rejected.
    """
    if block is None or (rejected := block.arrays.get(REJECTED)) is None:
        return block
    if manifest.keeps(index)[rejected].any():
        return None
    arrays = {name: array for name, array in block.arrays.items() if name != REJECTED}
    return Block(block.rows, arrays, owner=block.owner)


def placed(error: ForebayError, manifest: Manifest, index: int, keeps: NDArray[np.bool_]) -> ForebayError:
    """Return `error` with its file, row group and, if known, row.

    Its row counts those that are kept, and the place all rows of the row group.
    """
    file, group = manifest.files[manifest.file_of[index]].path, int(manifest.group_of[index])
    facts: dict[str, object] = {"file": file, "row_group": group}
    row = error.facts.get("row", error.facts.get("first_row"))
    place = f"{file}:{group}"
    if isinstance(row, int):
        facts["row"] = int(np.flatnonzero(keeps)[row])
        place = f"{place}:{facts['row']}"
    return type(error)(f"{place}: {error}", **(error.facts | facts))


def _spread(name: str, array: BlockArray, accepted: NDArray[np.bool_]) -> BlockArray:
    """Spread the accepted rows over all rows.

    Others are 0, and their lists empty.
    """
    if name.startswith(LIST_VALUES):
        return array
    if name.startswith(LIST_OFFSETS):
        bounds: BlockArray = array[np.concatenate([[0], np.cumsum(accepted)])]
        return bounds
    spread = np.zeros((len(accepted), *array.shape[1:]), array.dtype)
    spread[accepted] = array
    return spread


def _is_accepted(transform: Transform, table: pa.Table, rows: Sequence[int] | NDArray[np.int64]) -> bool:
    try:
        transform.apply(table.take(pa.array(rows)))
    except REFUSALS:
        return False
    return True
