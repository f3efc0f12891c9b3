"""Setting that every system of the mixture bench receives, and the datasets that all of them mix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WEIGHTS = {"books": 0.05, "code": 0.25, "web": 0.7}
"""In sorted order, as `source` counts them."""
WIDTH = 16
SPARE = 1.1
"""Rows of each dataset, over those that an epoch takes: no system has to repeat a row within one."""

Sample = dict[str, Any]


@dataclass(frozen=True)
class MixtureSetting:
    """Setting of one run.

    Attributes:
        data: Folder with a folder of Parquet files for each dataset.
        work: Folder for caches of this run.
        converted: Folder for converted data, kept from run to run.
        rows: Rows of an epoch, if the system lets one choose.
        batch: Rows per batch.
        threads: Threads or processes that may read and decode.
        seed: Seed of the order, if the system takes one.
    """

    data: Path
    work: Path
    converted: Path
    rows: int
    batch: int = 1024
    threads: int = 2
    seed: int = 7

    def files(self, name: str) -> list[Path]:
        """Files of a dataset."""
        return sorted((self.data / name).glob("*.parquet"))


class MixedBatch(NamedTuple):
    """Batch with its epoch, and a function that returns the state to go on after it, as JSON has it."""

    arrays: dict[str, Any]
    epoch: int
    state: Callable[[], Any]


class MixingSystem(Protocol):
    """One way to mix datasets. Every file in `systems/` has a function `open_system(setting) -> MixingSystem`."""

    version: str

    def prepare(self) -> None:
        """Convert the data if needed and not done yet. Does not count in any time."""

    def batches(self, state: Any | None) -> Iterator[MixedBatch]:
        """Batches of one epoch after the other, from the start or after a state."""


def write_data(folder: Path, rows: int) -> Path:
    """Write the datasets for epochs of `rows` rows, unless they exist. Returns their folder."""
    target = folder / f"mixture-{rows}"
    if target.exists():
        return target
    unfinished = target.with_suffix(".unfinished")
    for source, (name, share) in enumerate(WEIGHTS.items()):
        rng = np.random.default_rng(source)
        ids = np.arange(int(SPARE * share * rows))
        (unfinished / name).mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(np.array_split(ids, 4)):
            columns = {f"x{place}": rng.standard_normal(len(part), dtype=np.float32) for place in range(WIDTH)}
            table = pa.table({"id": part, "source": np.full(len(part), source)} | columns)
            pq.write_table(table, unfinished / name / f"part-{number}.parquet", row_group_size=len(part) // 4 + 1)
    unfinished.rename(target)
    return target


def samples(path: Path) -> Iterator[Sample]:
    """Rows of a file one by one, for systems that take them so."""
    table = pq.read_table(path)
    x = np.stack([table[f"x{place}"].to_numpy() for place in range(WIDTH)], axis=1)
    for row, (number, source) in enumerate(zip(table["id"].to_pylist(), table["source"].to_pylist(), strict=True)):
        yield {"id": number, "source": source, "x": x[row]}
