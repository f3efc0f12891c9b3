"""Number of times that each row group was sent and transformed, from the logs of the source and the transform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.sweep.source import Counts, Range


@dataclass(frozen=True)
class CountedRowGroup:
    """Location of a row group: bytes of a file, rows of the dataset."""

    path: str
    start: int
    stop: int
    first: int
    rows: int


@dataclass(frozen=True)
class SourceCounters:
    """Totals of one sweep.

    - `sent_bytes`: all bytes that the source sent. `data_bytes`: bytes of row groups; the rest is footers.
    - `reads`: number of answers.
    - `sent`: times that each byte of a row group was sent, on average, for the least and the most sent row group.
    - `transformed`: the same for rows that were transformed.
    - `passes`, `transform_passes`: means over all row groups.
    - `read`: times that a read began with the first byte of a row group, as each of Forebay's does. Unlike `sent`, it
      leaves out a file's last row groups, which come along when a footer is read.
    """

    sent_bytes: int
    data_bytes: int
    reads: int
    sent: tuple[float, float]
    read: tuple[int, int]
    transformed: tuple[float, float]
    passes: float
    transform_passes: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def row_groups(folder: Path) -> list[CountedRowGroup]:
    """Row groups of all files, in the order of the files' names."""
    found, row = [], 0
    for path in sorted(folder.glob("*.parquet")):
        footer = pq.read_metadata(path)
        for index in range(footer.num_row_groups):
            group = footer.row_group(index)
            chunks = [group.column(place) for place in range(group.num_columns)]
            start = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
            size = sum(chunk.total_compressed_size for chunk in chunks)
            found.append(CountedRowGroup(f"{folder.name}/{path.name}", start, start + size, row, group.num_rows))
            row += group.num_rows
    return found


def counters(
    groups: Sequence[CountedRowGroup], counts: Counts, transforms: Sequence[Mapping[str, Any]]
) -> SourceCounters:
    """Totals of one sweep. `transforms` are the lines of `SweepSetting.transforms_log`."""
    sent = np.array([_sent(group, counts.ranges) for group in groups])
    sizes = np.array([group.stop - group.start for group in groups])
    made = np.array(_transformed(groups, transforms))
    rows = np.array([group.rows for group in groups])
    begun = Counter((place.path, place.start) for place, times in counts.ranges.items() for _ in range(times))
    read = [begun[group.path, group.start] for group in groups]
    return SourceCounters(
        sent_bytes=counts.sent_bytes,
        data_bytes=int(sent.sum()),
        reads=counts.reads,
        sent=(float((sent / sizes).min()), float((sent / sizes).max())),
        read=(min(read), max(read)),
        transformed=(float((made / rows).min()), float((made / rows).max())),
        passes=float(sent.sum() / sizes.sum()),
        transform_passes=float(made.sum() / rows.sum()),
    )


def _sent(group: CountedRowGroup, ranges: Mapping[Range, int]) -> int:
    """Bytes of this row group that were sent. Repeated bytes count each time."""
    return sum(
        max(min(place.stop, group.stop) - max(place.start, group.start), 0) * times
        for place, times in ranges.items()
        if place.path == group.path
    )


def _transformed(groups: Sequence[CountedRowGroup], transforms: Sequence[Mapping[str, Any]]) -> list[int]:
    """Rows of each row group that were transformed. Repeated rows count each time."""
    spans = Counter(tuple(span) for line in transforms for span in line["spans"])
    return [
        sum(
            max(min(stop, group.first + group.rows) - max(start, group.first), 0) * times
            for (start, stop), times in spans.items()
        )
        for group in groups
    ]
