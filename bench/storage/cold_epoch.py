"""Share of a simulated line that a cold epoch reaches, with 8, 32 and "auto" reads at once.

python -m bench.storage.cold_epoch --json cold_epoch.json          # 1 Gbit/s at 50 and 200 ms: two minutes
python -m bench.storage.cold_epoch --json cold_epoch.json --all    # also 10 Gbit/s, 4 MB, three rounds: 25 minutes

The store is in the same process: it reads local files, sends all bytes one after the other at the rate of the line,
and answers each read after the delay besides. Opening a file is not delayed, reading its footer is. Nothing is cached,
and the consumer only takes batches. The clock begins with the loader and ends with the last batch.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay as fb
from bench.own.verdict import Figure, interleaved, main, measure, spread
from forebay.data.cache.builders import data_workers
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.source import LocalSource
from forebay.data.loader.loader import Loader
from forebay.data.parquet import page_kernels, reading
from forebay.data.transform.dataset import Dataset
from forebay.runtime.metrics import Counters

LEAST_OF_LINE = 0.9
COLUMNS = 20
ROW_GROUPS_PER_FILE = 32
GLOBAL_BATCH = 8192


class SimulatedLine:
    """Line of `rate` bytes per second that all reads share, with a delay of `delay_s` for each."""

    def __init__(self, rate: float, delay_s: float) -> None:
        self._rate, self._delay_s = rate, delay_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def send(self, nbytes: int) -> None:
        """Return when `nbytes` have arrived."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._rate
            arrives_at = self._free_at + self._delay_s
        time.sleep(max(arrives_at - time.monotonic(), 0.0))


class DistantFile:
    """Local file whose bytes come over `line`."""

    def __init__(self, file: Any, line: SimulatedLine) -> None:
        self._file, self._line = file, line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def size(self) -> int:
        """Bytes of the file."""
        return int(self._file.size())

    def seek(self, position: int) -> int:
        """Move the position."""
        return int(self._file.seek(position))

    def read_buffer(self, nbytes: int) -> pa.Buffer:
        """Bytes from the position on."""
        self._line.send(nbytes)
        return self._file.read_buffer(nbytes)

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """Bytes from `offset` on."""
        self._line.send(nbytes)
        return bytes(self._file.read_at(nbytes, offset))


def write(folder: str, row_group_bytes: int, nbytes: int) -> int:
    """Write files of plain float32 columns, unless they are there. Returns their number of row groups."""
    path, rows = Path(folder), row_group_bytes // (4 * COLUMNS)
    num_row_groups = max(1, nbytes // row_group_bytes)
    if path.exists():
        return num_row_groups
    path.mkdir(parents=True)
    values = np.random.default_rng(0).random((COLUMNS, rows), np.float32)
    table = pa.table({f"x{number}": values[number] for number in range(COLUMNS)})
    for number, start in enumerate(range(0, num_row_groups, ROW_GROUPS_PER_FILE)):
        with pq.ParquetWriter(
            path / f"{number:05}.parquet", table.schema, compression="none", use_dictionary=False
        ) as writer:
            for _ in range(min(ROW_GROUPS_PER_FILE, num_row_groups - start)):
                writer.write_table(table, row_group_size=rows)
    return num_row_groups


class Uncached:
    """Source of blocks that keeps none of them."""

    def __init__(self, num_reads: int | Literal["auto"]) -> None:
        self._workers = DataWorkers(num_reads=num_reads)

    def source(self, dataset: Dataset, counters: Counters) -> LocalSource:
        """Blocks of `dataset`."""
        return LocalSource(dataset, None, counters=counters, workers=self._workers)


def epoch(
    folder: str, gbit_s: float, delay_s: float, num_reads: int | Literal["auto"], prefetch_mib: int
) -> dict[str, float]:
    """Share of the line that one epoch reached, and what it cost."""
    manifest = fb.scan(folder)
    for file in Path(folder).iterdir():
        file.read_bytes()  # from now on in the page cache
    line, open_input = SimulatedLine(gbit_s * 1e9 / 8, delay_s), reading.open_input
    data_workers.has_local_name = lambda _: False  # A file behind the line is read as one of a store.
    reading.open_input = lambda uri: DistantFile(open_input(uri), line)  # type: ignore[assignment, return-value]
    transform = fb.Transform(x=fb.Dense(manifest.columns))
    counters = Counters()
    plan = fb.build_plan(manifest)
    page_kernels.load()  # once in a process
    start, cpu_s = time.monotonic(), time.process_time()
    with Loader(
        plan,
        transform,
        Uncached(num_reads),
        global_batch=GLOBAL_BATCH,
        prefetch_bytes=prefetch_mib << 20,
        epochs=1,
        counters=counters,
    ) as loader:
        rows = sum(batch.num_rows for batch in loader)
        seconds = time.monotonic() - start
    assert rows == manifest.num_rows
    return {
        "share": counters["source_bytes"] / seconds / (gbit_s * 1e9 / 8),
        "cores": (time.process_time() - cpu_s) / seconds,
        "making": (counters["decode_s"] + counters["transform_s"]) / seconds,
        "gathering": counters["gather_s"] / seconds,
        "reading": counters["remote_read_s"] / seconds,
        "allowed": counters["reads_allowed"] / len(manifest),
        "seconds": seconds,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdCase:
    """A line, and row groups that come over it."""

    gbit_s: int
    row_group_mb: int
    delay_s: float


SHORT = tuple(ColdCase(gbit_s=1, row_group_mb=1, delay_s=delay_s) for delay_s in (0.05, 0.2))
"""Cases in which the processor is no limit, and row groups are so small that the number of reads decides."""
ALL = tuple(
    ColdCase(gbit_s=gbit_s, row_group_mb=row_group_mb, delay_s=delay_s)
    for gbit_s, row_group_mb, delay_s in itertools.product((1, 10), (1, 4), (0.05, 0.2))
)


def short_figures(folder: Path, quick: bool) -> list[Figure]:
    """Each of `SHORT`, once."""
    return figures(folder, SHORT, ("8", "auto"), rounds=1, line_s=0.5 if quick else 12.0)


def all_figures(folder: Path, quick: bool) -> list[Figure]:
    """Each of `ALL`, three times."""
    return figures(folder, ALL, ("8", "32", "auto"), rounds=1 if quick else 3, line_s=0.5 if quick else 12.0)


def figures(
    folder: Path, cases: Sequence[ColdCase], num_reads: Sequence[str], *, rounds: int, line_s: float
) -> list[Figure]:
    """Each case with each number of reads in turn. A line of 1 Gbit/s takes at least `line_s` for an epoch."""
    found = []
    for case in cases:
        gbit_s, row_group_mb, delay_s = case.gbit_s, case.row_group_mb, case.delay_s
        data = folder / f"{row_group_mb}-{gbit_s}"
        nbytes = int(line_s * 1e9 / 8) if gbit_s == 1 else int(line_s * 1e9 / 4)
        measure(__spec__.name, "write", folder=data, row_group_bytes=row_group_mb * 1_000_000, nbytes=nbytes)
        answers: dict[str, list[dict[str, float]]] = {}

        def run(reads: str, data: Path = data, case: ColdCase = case, answers: Any = answers) -> float:
            answer = measure(
                __spec__.name,
                "epoch",
                folder=data,
                gbit_s=case.gbit_s,
                delay_s=case.delay_s,
                num_reads=reads if reads == "auto" else int(reads),
                prefetch_mib=256 if case.gbit_s == 1 else 1024,
            )
            answers.setdefault(reads, []).append(answer)
            return float(answer["share"])

        shares = interleaved(num_reads, rounds, run)
        for reads, values in shares.items():
            median = sorted(values)[len(values) // 2]
            last = answers[reads][-1]
            note = f"{spread(values)} of {rounds}; {last['cores']:.2f} cores busy, {last['reading']:.1f} reads at once"
            name = f"{row_group_mb} MB row groups, {1000 * delay_s:.0f} ms, {gbit_s} Gbit/s, {reads} reads"
            has_target = reads == "auto"
            found.append(
                Figure(
                    name,
                    f">= {LEAST_OF_LINE}" if has_target else "-",
                    median,
                    "of the line",
                    median >= LEAST_OF_LINE if has_target else None,
                    note,
                )
            )
    return found


if __name__ == "__main__":
    main(short_figures, {"write": write, "epoch": epoch}, all_figures)
