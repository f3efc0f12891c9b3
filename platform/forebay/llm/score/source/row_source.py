"""Rows to score, by their number in the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Rows of a range.

    `rows` has a dictionary each, empty where `errors` has a reason, by the index in the range.

    `kept` are the columns that the answers have too.
    """

    rows: Sequence[dict[str, Any]]
    kept: Mapping[str, pa.Array | pa.ChunkedArray]
    errors: Mapping[int, str] = field(default_factory=dict)


class RowReader(Protocol):
    """Open source.

    Ranges are read one after the other, so it keeps what the next one may need.
    """

    def read(self, start: int, stop: int) -> RowBlock:
        """Read rows `start` to `stop`, which exist.

        Raises the errors of storage, and `SourceChanged`.
        """
        ...


class RowSource(Protocol):
    """Source of rows, pickled for each process that scores."""

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def identity(self) -> str:
        """Digest of everything that decides the rows."""
        ...

    @property
    def from_arrow(self) -> bool:
        """Whether structs of a row have null for fields of other rows."""
        ...

    def open(self, columns: Sequence[str], keep: Sequence[str]) -> RowReader:
        """Open a reader of `columns`, which include `keep`."""
        ...
