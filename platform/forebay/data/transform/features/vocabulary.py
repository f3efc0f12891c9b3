"""Vocabularies: values of a column by frequency.

Each value can then have its own id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.column_paths import read_paths, schema_with_paths
from forebay.data.parquet.decoded_table import with_paths
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.transform.features.categories import check_categories, plain_values
from forebay.data.transform.features.columns import column_names, column_type
from forebay.errors import InvalidOption, validate_type


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Vocabulary of categorical columns, by frequency.

    Given to `Categorical(vocabulary=...)`. The most frequent value comes first, equally frequent ones in ascending
    order. Leaves out nulls, and values that occur fewer than `min_count` times. `max_size` keeps the most frequent
    ones. Dates and times are kept as their stored integers.
    """

    columns: str | Sequence[str]
    min_count: int = 1
    max_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_names("Vocabulary", self.columns))
        if self.min_count < 1 or (self.max_size is not None and self.max_size < 1):
            raise InvalidOption(
                f"{self} keeps no value. Give min_count and max_size of at least 1.",
                min_count=self.min_count,
                max_size=self.max_size,
            )

    def fit(self, manifest: Manifest) -> dict[str, tuple[Any, ...]]:
        """Count the values of each column, in one pass.

        Returns the values by column. Reads only these columns. Fit on the training part only (`manifest.split`):
        held-out values may then be unknown, as in production.

        Raises `MissingColumn`, `WrongType` (floats, lists), and the errors of reading.
        """
        validate_type("manifest", manifest, Manifest, "what fb.scan(...) returns")
        columns_of = {field.name: parse_type(field.type) for field in manifest.fields}
        schema = schema_with_paths(columns_of, self.columns)
        for name in self.columns:
            check_categories("Vocabulary", name, column_type("Vocabulary", name, schema))
        counts: dict[str, Counter[Any]] = {name: Counter() for name in self.columns}
        reader = RowGroupReader(manifest)
        for index in range(len(manifest)):
            table = with_paths(reader.read(index, read_paths(self.columns, columns_of)), self.columns)
            for name in self.columns:
                for chunk in table[name].chunks:
                    count_values(counts[name], chunk)
        return {name: most_frequent(counts[name], self.min_count, self.max_size) for name in self.columns}


def count_values(counts: Counter[Any], chunk: pa.Array) -> None:
    """Count the values of `chunk`, without nulls.

    Adds to `counts`.
    """
    found = pc.value_counts(plain_values(chunk).drop_null())
    values, times = found.field("values").to_pylist(), found.field("counts").to_pylist()
    for value, count in zip(values, times, strict=True):
        counts[value] += count


def most_frequent(counts: Counter[Any], min_count: int, max_size: int | None) -> tuple[Any, ...]:
    """Values by frequency, most frequent first.

    Values that occur at least `min_count` times, equally frequent ones ascending.
    """
    frequent = (value for value, count in counts.items() if count >= min_count)
    return tuple(sorted(frequent, key=lambda value: (-counts[value], value))[:max_size])
