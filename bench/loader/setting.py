"""Setting that every system of the bench receives, and the facts that it states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class LoaderSetting:
    """Setting of one run.

    Attributes:
        kind: "dense" or "mixed".
        data: Folder of the Parquet files.
        num_rows: Rows in these files.
        work: Folder for caches of this run. Empty at a cold start.
        converted: Folder for converted data, kept from run to run.
        variant: Variant of the system, "" for the plain one.
        batch: Rows per batch.
        threads: Threads or processes that may read and decode.
        seed: Seed of the order, if the system takes one.
    """

    kind: str
    data: Path
    num_rows: int
    work: Path
    converted: Path
    variant: str = ""
    batch: int = 8192
    threads: int = 2
    seed: int = 7

    @property
    def files(self) -> list[Path]:
        return sorted(self.data.glob("*.parquet"))


@dataclass(frozen=True)
class LoaderFacts:
    """Facts that explain the numbers of a system."""

    version: str
    shuffled: str
    packed: str
    deterministic: str
    note: str = ""


class System(Protocol):
    """One way to feed a trainer. Every file in `systems/` has a function `open_system(setting) -> System`."""

    facts: LoaderFacts

    def prepare(self) -> None:
        """Convert the data if needed and not done yet. Does not count in any epoch's time."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        """Batches of an epoch: name -> packed array or tensor [rows, ...]."""

    def close(self) -> None:
        """Release everything."""
