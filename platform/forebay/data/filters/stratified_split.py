"""Split a dataset, and keep class shares."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.column_casts import comparable
from forebay.data.parquet.column_paths import column_at
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import InvalidOption, WrongType

_PASSES = 10


def stratified_split(manifest: Manifest, fraction: float, *, by: str, seed: int = 0) -> tuple[Manifest, Manifest]:
    """Hold out row groups by class.

    The held out part has about `fraction` of the rows of each class. Returns (rest, held out).

    Starts from `manifest.split(fraction, seed)`, and moves the row group that improves the shares most as long as one
    does. Reads column `by`, and counts nulls as a class. The shares are as good as the row groups allow: a class in one
    row group is on one side.

    Args:
        manifest: Row groups, from `scan`.
        fraction: Share of the rows to hold out, between 0 and 1.
        by: Column with the class of each row, or a path into a struct.
        seed: Seed of the first choice.

    Raises:
        InvalidOption: As `manifest.split`, or a column with as many classes as rows.
        MissingColumn, SourceChanged: The column cannot be read.
        WrongType: It has no classes, such as a list.
    """
    _, held_out = manifest.split(fraction, seed)
    counts = _class_counts(manifest, by)
    chosen = _mask_of(manifest, held_out)
    totals = counts.sum(axis=0)
    shares = counts / totals
    missing = fraction - shares[chosen].sum(axis=0)
    for _ in range(_PASSES * len(manifest)):
        # Moving a row group changes the shares by its own. The gain is the decrease of the sum of squares.
        change = np.where(chosen[:, None], -shares, shares)
        gain = 2 * change @ missing - np.square(change).sum(axis=1)
        for side in (chosen, ~chosen):
            if side.sum() == 1:
                gain[side] = 0  # Each side keeps a row group.
        best = int(np.argmax(gain))
        if gain[best] <= 1e-12:
            break
        chosen[best] = not chosen[best]
        missing -= change[best]
    return manifest.take(~chosen), manifest.take(chosen)


def _class_counts(manifest: Manifest, column: str) -> NDArray[np.int64]:
    """Rows per class, int64 [row groups, classes]."""
    reader = RowGroupReader(manifest)
    found: list[Counter[Any]] = []
    for index in range(len(manifest)):
        values = comparable(column_at(reader.read(index, [column]), column))
        try:
            counted = values.value_counts()
        except pa.ArrowNotImplementedError:
            raise WrongType(
                f"stratify={column!r} is {values.type}. Give a column of integers, bools or text.", column=column
            ) from None
        found.append(Counter({each["values"]: each["counts"] for each in counted.to_pylist()}))
    classes = {name: code for code, name in enumerate(dict.fromkeys(name for each in found for name in each))}
    if len(classes) == manifest.num_rows > 1:
        raise InvalidOption(
            f"stratify={column!r} has another value in each of {manifest.num_rows} rows. Give a column of classes.",
            column=column,
        )
    counts = np.zeros((len(found), len(classes)), dtype=np.int64)
    for index, each in enumerate(found):
        for name, times in each.items():
            counts[index, classes[name]] = times
    return counts


def _mask_of(manifest: Manifest, part: Manifest) -> NDArray[np.bool_]:
    """Row groups in `part`, bool [row groups]."""
    inside = {(group.uri, group.index) for group in part}
    return np.array([(group.uri, group.index) in inside for group in manifest])
