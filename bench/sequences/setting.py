"""Setting that every system of the sequence bench receives, and the facts that it states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAST, FUTURE = 336, 96
SERIES_WINDOWS = 10_000
"""Windows of each series."""
SERIES_STEPS = SERIES_WINDOWS + PAST + FUTURE - 1


@dataclass(frozen=True)
class SequenceSetting:
    """Setting of one run.

    Attributes:
        data: Folder of the Parquet files: `series`, and float32 columns `c0`, `c1`, ...
        flat: The same values as float32 [steps, columns] in one file, for systems that map memory.
        windows: Windows of all series together.
        columns: Number of columns.
        work: Folder of this system and dataset, kept from process to process.
        variant: Variant of the system, "" for the plain one.
        batch: Windows per batch.
        workers: Processes of a `DataLoader`.
        prefetch: Batches that each of them makes ahead.
        seed: Seed of the order.
    """

    data: Path
    flat: Path
    windows: int
    columns: int
    work: Path
    variant: str = ""
    batch: int = 256
    workers: int = 4
    prefetch: int = 10
    seed: int = 7

    @property
    def series(self) -> int:
        """Number of series."""
        return self.windows // SERIES_WINDOWS

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [f"c{number}" for number in range(self.columns)]

    @property
    def files(self) -> list[Path]:
        return sorted(self.data.glob("*.parquet"))


@dataclass(frozen=True)
class SequenceFacts:
    """Facts that explain the numbers of a system."""

    version: str
    shuffled: str
    note: str = ""
