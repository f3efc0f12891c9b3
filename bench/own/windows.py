"""Costs of windows on one core: finding them in the index, gathering them, and scaling them while they are gathered.

python -m bench.own.windows [--json PATH] [--quick]

Seconds are CPU time of the calling thread. A batch of 256 windows, at most 64 MB, is gathered into the same memory.
*Again* takes the same windows each time, and shows the work of the kernel. *From memory* takes other windows each time,
which no CPU cache holds, and waits for memory above all. The ceiling is a plain copy of as many bytes in that round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from bench.own.verdict import Figure, interleaved, main, measure, spread
from forebay.data.kernels.calls import gather_scaled, gather_steps
from forebay.data.windows.index import WindowIndex, WindowShape
from forebay.data.windows.line import StepLine
from forebay.data.windows.splits import TargetBounds

_SHAPES = ((336, 7), (64, 100), (3000, 20))
"""Steps and columns: 9, 26 and 240 KB per window."""
_RUN_STEPS = 1 << 14
_ROUNDS = 7


def figures(_folder: Path, quick: bool) -> list[Figure]:
    """Speed of both kernels on windows of at least 8 KB, lookup and memory of the index."""
    found = []
    for steps, columns in _SHAPES:
        rates = measure(__spec__.name, "gathering", steps=steps, columns=columns, quick=quick)
        for source in ("again", "from memory"):
            copied = rates[f"copy, {source}"]
            for kernel, least in (("raw", 10.0), ("scaled", 3.0)):
                own = rates[f"{kernel}, {source}"]
                rate, target = statistics.median(own), f">= {least:g}" if source == "again" else "report"
                ratio = statistics.median(a / b for a, b in zip(own, copied, strict=True))
                note = f"{spread(own)}; {ratio:.2f} of a plain copy: {spread(copied)}"
                title = f"windows of {steps} x {columns} float32, {kernel}, {source}"
                passed = rate >= least if source == "again" else None
                found.append(Figure(title, target, rate, "GB/s of CPU", passed, note))
    index = measure(__spec__.name, "lookup", entities=1000 if quick else 1_000_000)
    note = f"{index['entities']:,} entities, {index['runs']:,} runs, {index['windows']:,} windows"
    return [
        *found,
        Figure("lookup of a random window", "<= 1000", index["ns"], "ns of CPU", index["ns"] <= 1000, note),
        Figure("memory of the index", "<= 100", index["run_bytes"], "bytes per run", index["run_bytes"] <= 100, note),
    ]


def gathering(steps: int, columns: int, quick: bool) -> dict[str, list[float]]:
    """GB/s of a plain copy, of windows as stored, and of scaled windows, again and from memory, by round."""
    rng = np.random.default_rng(0)
    window_bytes = 4 * steps * columns
    count = max(min(256, (64 << 20) // window_bytes), 16)
    lengths = rng.integers(2 * steps, 6 * steps + 1, max((2 << 20 if quick else 512 << 20) // (4 * window_bytes), 8))
    first = np.concatenate([[0], np.cumsum(lengths)])
    values = rng.random((int(first[-1]), columns), dtype=np.float32)
    starts = np.unique(np.concatenate([first, np.arange(0, first[-1], _RUN_STEPS)]))
    line = np.stack([starts, np.full_like(starts, values.ctypes.data)])

    def windows() -> np.ndarray:
        series = rng.integers(len(lengths), size=count)
        start = first[series] + (rng.random(count) * (lengths[series] - steps)).astype(np.int64)
        return np.ascontiguousarray([start, start, np.searchsorted(starts, start, side="right") - 1])

    fresh = cycle([windows() for _ in range(max(min(values.nbytes // (count * window_bytes), 50), 2))])
    again = next(fresh)
    begin = cycle(range(0, len(values) - count * steps, count * steps) or [0])
    out = np.empty((count, steps, columns), np.float32)
    scaling = np.stack([np.full(columns, value, np.float32) for value in (0.5, 2.0, 0.0, 0.0, 0.0)])
    raw_view = np.array([0, steps, 4 * columns, window_bytes, 1])
    view = np.array([0, steps, columns, steps * columns, 1, 0, *range(columns)])
    flat = out.reshape(-1, columns)

    def copy(at: int) -> None:
        np.copyto(flat[: len(values) - at], values[at : at + len(flat)])

    calls: dict[str, Callable[[], Any]] = {
        "copy, again": lambda: copy(0),
        "copy, from memory": lambda: copy(next(begin)),
        "raw, again": lambda: gather_steps(out.ctypes.data, raw_view, line, again),
        "raw, from memory": lambda: gather_steps(out.ctypes.data, raw_view, line, next(fresh)),
        "scaled, again": lambda: gather_scaled(out.reshape(-1), view, scaling, line, again),
        "scaled, from memory": lambda: gather_scaled(out.reshape(-1), view, scaling, line, next(fresh)),
    }
    repeats = 1 if quick else max((512 << 20) // out.nbytes, 1)

    def rate(name: str) -> float:
        calls[name]()
        began = time.thread_time()
        for _ in range(repeats):
            calls[name]()
        return out.nbytes * repeats / max(time.thread_time() - began, 1e-9) / 1e9

    return interleaved(list(calls), 2 if quick else _ROUNDS, rate)


def lookup(entities: int) -> dict[str, float]:
    """CPU time of a lookup in batches of 8192, and bytes of the index, over series in blocks of 65,536 steps."""
    rng = np.random.default_rng(0)
    first = np.concatenate([[0], np.cumsum(rng.integers(200, 2000, entities))]).astype(np.int64)
    starts = np.unique(np.concatenate([first, np.arange(0, first[-1], 1 << 16)]))
    runs = starts[:-1]
    line = StepLine(block=runs >> 16, first=runs & 0xFFFF, starts=starts, segments=first, entities=first)
    num_blocks = int(line.block[-1]) + 1
    shape = WindowShape(past=96, ahead=tuple(range(1, 25)))
    index = WindowIndex(line, shape, TargetBounds.all_of(line), num_blocks=num_blocks, data_id="bench")
    best = float("inf")
    for _ in range(_ROUNDS):
        block = rng.integers(num_blocks, size=8192)
        row = (rng.random(8192) * index.rows[block]).astype(np.int64)
        began = time.thread_time()
        index.locate(block, row)
        best = min(best, time.thread_time() - began)
    found = {"ns": best / 8192 * 1e9, "run_bytes": index.nbytes / len(runs), "runs": len(runs)}
    return found | {"entities": entities, "windows": index.num_windows}


if __name__ == "__main__":
    main(figures, {"gathering": gathering, "lookup": lookup})
