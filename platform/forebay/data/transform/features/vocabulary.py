"""Fits vocabularies: counts the values of a column over a dataset, so that each can have its own id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.transform.features.categories import check_categories, plain_values
from forebay.data.transform.features.columns import column_names, column_type
from forebay.data.transform.features.paths import read_paths, schema_with_paths, with_paths
from forebay.errors import InvalidOption


def fit_vocabulary(
    manifest: Manifest, columns: Sequence[str], *, min_count: int = 1, max_size: int | None = None
) -> dict[str, tuple[Any, ...]]:
    """Values of each column for `Categorical`: the most frequent first, equally frequent ones in ascending order.

    Makes one pass over the row groups, and reads only these columns. Leaves out nulls, and values that occur fewer than
    `min_count` times. `max_size` keeps only the most frequent ones. Dates and times are returned as their stored
    integers. Fit on the training part only (`manifest.split`): then held-out values may be unknown, as they will be in
    production.

    Raises `MissingColumn`, `WrongType` (floats, lists), `InvalidOption`, and the errors of reading.
    """
    names = column_names("fit_vocabulary", columns)
    if min_count < 1 or (max_size is not None and max_size < 1):
        raise InvalidOption(
            f"fit_vocabulary(min_count={min_count}, max_size={max_size}) keeps no value. Give both at least 1.",
            min_count=min_count,
            max_size=max_size,
        )
    columns_of = {field.name: parse_type(field.type) for field in manifest.fields}
    schema = schema_with_paths(columns_of, names)
    for name in names:
        check_categories("fit_vocabulary", name, column_type("fit_vocabulary", name, schema))
    counts: dict[str, Counter[Any]] = {name: Counter() for name in names}
    reader = RowGroupReader(manifest)
    for index in range(len(manifest)):
        table = with_paths(reader.read(index, read_paths(names, columns_of)), names)
        for name in names:
            for chunk in table[name].chunks:
                count_values(counts[name], chunk)
    return {name: most_frequent(counts[name], min_count, max_size) for name in names}


def count_values(counts: Counter[Any], chunk: pa.Array) -> None:
    """Add the values of `chunk`, without nulls, to `counts`."""
    found = pc.value_counts(plain_values(chunk).drop_null())
    values, times = found.field("values").to_pylist(), found.field("counts").to_pylist()
    for value, count in zip(values, times, strict=True):
        counts[value] += count


def most_frequent(counts: Counter[Any], min_count: int, max_size: int | None) -> tuple[Any, ...]:
    """Values that occur at least `min_count` times, the most frequent first, equally frequent ones ascending."""
    frequent = (value for value, count in counts.items() if count >= min_count)
    return tuple(sorted(frequent, key=lambda value: (-counts[value], value))[:max_size])
