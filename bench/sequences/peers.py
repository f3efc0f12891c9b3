"""Systems of the sequence bench, and the datasets that they are measured on."""

from __future__ import annotations

from dataclasses import dataclass

from bench.loader.peers import OWN


@dataclass(frozen=True)
class SeriesSet:
    """Dataset by its number of windows and columns."""

    windows: int
    columns: int

    @property
    def name(self) -> str:
        """Name in options, files and results."""
        return f"{self.windows}x{self.columns}"

    @classmethod
    def parse(cls, name: str) -> SeriesSet:
        """Dataset of a name such as `10000000x7`."""
        windows, _, columns = name.partition("x")
        return cls(int(windows), int(columns))


SETS = (SeriesSet(10**5, 7), SeriesSet(10**7, 7), SeriesSet(10**7, 1), SeriesSet(10**9, 1))
RATES = SETS[1]
"""Dataset that ratios of windows/s are of."""
SMALL, LARGE = SETS[2], SETS[3]
"""Datasets that the growth of memory is of."""


@dataclass(frozen=True)
class SequenceEntry:
    """One row of the table: its file in `bench/sequences/systems/`, the variant, and its environment."""

    name: str
    system: str
    variant: str = ""
    venv: str = OWN


FOREBAY, FOREBAY_RAW = "Forebay", "Forebay, not scaled"
GATHER, GATHER_RAW = "limit: bare gather, scaled", "limit: bare gather"
GATHER_COLD, GATHER_RAW_COLD = f"{GATHER}, 40 buffers", f"{GATHER_RAW}, 40 buffers"
MAPPED, MAPPED_SCALED = "memory map + DataLoader", "memory map + DataLoader, scaled by window"

ENTRIES = (
    SequenceEntry(FOREBAY, "forebay_windows"),
    SequenceEntry(FOREBAY_RAW, "forebay_windows", "raw"),
    SequenceEntry(GATHER, "gather"),
    SequenceEntry(GATHER_RAW, "gather", "raw"),
    SequenceEntry(GATHER_COLD, "gather", "cold"),
    SequenceEntry(GATHER_RAW_COLD, "gather", "raw cold"),
    SequenceEntry(MAPPED, "memory_map"),
    SequenceEntry(MAPPED_SCALED, "memory_map", "scaled"),
    SequenceEntry("memory map + DataLoader, drawn with replacement", "memory_map", "replacement"),
    SequenceEntry("pytorch-forecasting", "forecasting_dataset", venv="pytorch-forecasting"),
    SequenceEntry("GluonTS", "gluonts_windows", venv="gluonts"),
    SequenceEntry("neuralforecast", "neuralforecast_windows", venv="neuralforecast"),
)
