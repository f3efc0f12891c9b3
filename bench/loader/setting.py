"""What every system of the bench is told, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class LoaderSetting:
    """What to read, and with what.

    Attributes:
        kind: "dense" or "mixed".
        data: Folder of the Parquet files.
        num_rows: Rows in it.
        work: An own folder for caches; empty at a cold start.
        converted: An own folder for converted data; kept from run to run.
        variant: Of the system, "" for the plain one.
        batch: Rows per batch.
        threads: Threads or processes that may read and decode.
        seed: Of the order, where the system has one.
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
    """What the numbers stand for."""

    version: str
    shuffled: str
    packed: str
    deterministic: str
    note: str = ""


class System(Protocol):
    """One way to feed a trainer. Every file in `systems/` has a function `open_system(setting) -> System`."""

    facts: LoaderFacts

    def prepare(self) -> None:
        """Convert the data, where that is needed and not done yet; not part of any epoch's time."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        """The batches of an epoch: name -> packed array or tensor [rows, ...]."""

    def close(self) -> None:
        """Let go of everything."""
