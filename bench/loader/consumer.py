"""Consumer of the bench in place of a trainer: takes batches, touches every byte, and counts and times what arrives.

It is the same for every system, needs only NumPy and knows none of them.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.loader.features import row_numbers
from bench.process_counts import counts_now, counts_since, family

STEP_S = 0.002


@dataclass(frozen=True)
class Consumer:
    """Use of a batch: `touch` reads every byte of it, then `step_s` seconds of sleep stand for a step on a GPU."""

    touch: bool = True
    step_s: float = 0.0


CONSUMERS = {"touch": Consumer(), "step": Consumer(step_s=STEP_S), "count": Consumer(touch=False)}
"""Consumers by name: touch all bytes, touch them and sleep 2 ms, or only count rows to show the cost of touching."""


@dataclass
class ConsumerTotals:
    """Totals of one epoch. If `complete` is False, it was stopped at its time limit, and nothing counts as lost.

    `neighbours` is the share of rows that come directly after the row before them in the files. It is near 1 in file
    order and near 0 if shuffled. `order` is a digest of the order of all rows.
    """

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    first_batch_s: float = 0.0
    complete: bool = True
    lost: int = 0
    repeated: int = 0
    neighbours: float = 0.0
    order: str = ""
    sums: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    peak_rss_bytes: int = 0
    all_peak_rss_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        rate = {"rows_per_s": self.rows / self.seconds, "waiting": self.waited_s / self.seconds}
        steady = self.seconds - self.first_batch_s
        rate["waiting_after_first"] = (self.waited_s - self.first_batch_s) / steady if steady > 0 else 0.0
        return asdict(self) | rate


def consume(
    batches: Iterable[Mapping[str, Any]],
    consumer: Consumer,
    *,
    kind: str,
    num_rows: int,
    limit_s: float,
    epochs: int = 1,
) -> ConsumerTotals:
    """Consume an epoch, or several. The clock starts before the iterator is made and stops at its end.

    Args:
        batches: Name -> packed array or tensor [rows, ...], all of one leading length.
        consumer: Use of each batch.
        kind: Kind of the dataset, which decides the column with the numbers of the rows.
        num_rows: Expected number of rows in an epoch.
        limit_s: Time limit.
        epochs: Number of epochs in `batches`, one after the other.
    """
    account, numbers = ConsumerTotals(), []
    before = counts_now()
    start = time.perf_counter()
    iterator = iter(batches)
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        got = time.perf_counter()
        account.waited_s += got - asked
        if not account.batches:
            account.first_batch_s = got - start
        if batch is None:
            break
        account.batches += 1
        account.rows += len(next(iter(batch.values())))
        account.bytes += sum(value.nbytes for value in batch.values())
        if consumer.touch:
            for name, total in touch(batch).items():
                account.sums[name] = (account.sums.get(name, 0) + total) % (1 << 64)
        numbers.append(row_numbers(batch, kind))
        del batch  # A loader may reuse its memory.
        if consumer.step_s:
            time.sleep(consumer.step_s)
        if time.perf_counter() - start > limit_s:
            account.complete = False
            break
    account.seconds = time.perf_counter() - start
    account.counts = counts_since(before)
    account.peak_rss_bytes, account.all_peak_rss_bytes = peak_memory()
    if epochs > 1:
        account.sums.clear()  # Sums are compared between single epochs only.
    _close(iterator)
    _check(account, np.concatenate(numbers) if numbers else np.zeros(0, np.int64), num_rows, epochs)
    return account


def touch(batch: Mapping[str, Any]) -> dict[str, int]:
    """Add up every byte of each array, eight at a time.

    If rows take a multiple of 8 bytes, the sums over an epoch do not depend on its order: equal sums, equal data.

    Raises:
        ValueError: An array is not packed: its rows are not contiguous.
    """
    sums = {}
    for name, value in batch.items():
        array = np.asarray(value)
        if not array.flags.c_contiguous:
            raise ValueError(f"array {name!r} {array.shape} is not packed: strides {array.strides}")
        octets = array.reshape(-1).view(np.uint8)
        whole = len(octets) // 8 * 8
        sums[name] = int(octets[:whole].view(np.uint64).sum()) + int(octets[whole:].sum())
    return sums


def peak_memory() -> tuple[int, int]:
    """Peak resident bytes of this process, and the sum over it and all its descendants (each counts shared pages)."""
    peaks = {}
    for pid in family():
        try:
            lines = Path("/proc", str(pid), "status").read_text().splitlines()
        except OSError:  # The process has just ended.
            continue
        peaks[pid] = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    return peaks.get(os.getpid(), 0), sum(peaks.values())


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _check(account: ConsumerTotals, numbers: np.ndarray, num_rows: int, epochs: int) -> None:
    """Check which rows arrived, and in what order, by their own numbers: a loader's own count is not evidence."""
    counts = np.bincount(numbers, minlength=num_rows)
    account.repeated = int((counts - epochs).clip(min=0).sum())
    account.lost = int((epochs - counts).clip(min=0).sum()) if account.complete else 0
    account.order = hashlib.sha256(numbers.tobytes()).hexdigest()[:12]
    account.neighbours = float((np.abs(np.diff(numbers)) == 1).mean()) if len(numbers) > 1 else 0.0
