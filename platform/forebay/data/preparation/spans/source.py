"""Protocol of a source prepared span by span, in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from forebay.data.manifest.prepared import PreparedOrigin


class SpanReader(Protocol):
    """Opened source.

    It is pickled once for each process that prepares.

    Laws: `spans` and the table of a span depend on the origin alone: not on other spans, on the process or on the
    order of calls. So spans are prepared in parallel and in any order, and each only once when a preparation that was
    killed is started again.
    """

    def spans(self) -> Sequence[Any]:
        """Spans of the source, in order.

        Plain data that can be pickled.
        """
        ...

    def read(self, span: Any) -> tuple[pa.Table, Mapping[str, int]]:
        """Read the rows of a span, and counts.

        There may be no rows. The counts say what was read.
        """
        ...

    def facts(self, counts: Sequence[Mapping[str, int]]) -> Mapping[str, Any]:
        """Facts of the whole dataset for its seal.

        From the counts of all spans: values that JSON can hold. Raises the error to show if there is nothing to train
        on.
        """
        ...


@runtime_checkable
class SpanSource(Protocol):
    """Source of a dataset, cut into spans.

    For `fb.prepare`, such as `forebay.llm.TokenSource`.
    """

    @property
    def row_group_rows(self) -> int:
        """Default number of rows of a row group."""
        ...

    def origin(self) -> PreparedOrigin:
        """Everything that decides the rows.

        Lists the input files, and opens none.
        """
        ...

    def open(self) -> SpanReader:
        """Open the source.

        Called only if the dataset does not exist yet.
        """
        ...
