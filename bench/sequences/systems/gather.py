"""Forebay's gather kernels on values in memory, with all windows located beforehand: the limit of a cached epoch.

No thread, no cache, no block. Each batch is copied into one of a few buffers that are reused. The order comes from
Forebay's plan. Variant "raw": bits are copied, otherwise values are scaled. Variants "cold" and "raw cold" take turns
among as many buffers as the queue of a loader may hold, so that no CPU cache holds the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from bench.sequences.setting import FUTURE, PAST, SERIES_STEPS, SequenceFacts, SequenceSetting
from bench.sequences.systems import forebay_windows
from forebay import Sequences, build_plan
from forebay.data.kernels.calls import gather_scaled, gather_steps

_NUM_BUFFERS, _NUM_COLD_BUFFERS = 4, 40
_BATCHES = 4000
"""Batches that are located beforehand. They come again and again."""


def facts(setting: SequenceSetting) -> SequenceFacts:  # noqa: ARG001
    """Facts of this variant."""
    return SequenceFacts(
        version="forebay.data.kernels.calls",
        shuffled="yes: the order of Forebay's plan",
        note="a limit, not a loader: values in memory, windows located beforehand, one thread",
    )


def prepare(setting: SequenceSetting) -> None:
    """Do nothing: the order is made from the cache that Forebay has filled."""


def batches(setting: SequenceSetting) -> Iterator[Mapping[str, Any]]:
    """The same batches again and again."""
    series = forebay_windows.sequences(setting)
    values = np.fromfile(setting.flat, np.float32).reshape(-1, setting.columns)
    line = np.zeros((2, setting.series + 1), np.int64)
    line[0] = np.arange(setting.series + 1) * SERIES_STEPS
    line[1] = values.ctypes.data
    located = list(_located(setting, series))
    scaling = np.zeros((5, setting.columns), np.float32)
    is_raw = "raw" in setting.variant
    num_buffers = _NUM_COLD_BUFFERS if "cold" in setting.variant else _NUM_BUFFERS
    if not is_raw:
        columns = [series.statistics[name] for name in setting.names]
        scaling[0], scaling[1] = [each.mean for each in columns], [1 / each.std for each in columns]
    shapes = {"past": (0, PAST), "future": (PAST, FUTURE)}
    buffers = [
        {name: np.empty((setting.batch, steps, setting.columns), np.float32) for name, (_, steps) in shapes.items()}
        for _ in range(num_buffers)
    ]
    for number in count():
        windows = located[number % len(located)]
        batch = {name: array[: windows.shape[1]] for name, array in buffers[number % num_buffers].items()}
        for name, (skip, steps) in shapes.items():
            out = batch[name]
            if is_raw:
                view = np.array([skip, steps, 4 * setting.columns, out.strides[0], 1])
                gather_steps(out.ctypes.data, view, line, windows)
            else:
                view = np.array([skip, steps, setting.columns, steps * setting.columns, 1, 0, *range(setting.columns)])
                gather_scaled(out.reshape(-1), view, scaling, line, windows)
        yield batch


def _located(setting: SequenceSetting, series: Sequences) -> Iterator[np.ndarray]:
    """Start, first real step and series of the windows of each batch, int64 [3, n]."""
    plan = build_plan(series.whole, seed=setting.seed)
    position = 0
    for _ in range(_BATCHES):
        if position >= plan.num_rows:
            return
        rows = plan.batch(0, position, setting.batch)
        start = series.windows.locate(rows.block, rows.row).start
        yield np.ascontiguousarray(np.stack([start, start, start // SERIES_STEPS]))
        position += len(rows.row)
