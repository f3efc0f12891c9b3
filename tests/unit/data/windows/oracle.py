"""Windows by brute force, from a pandas frame: the definition that the index must meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from forebay.data.windows.index import WindowShape
from forebay.data.windows.line import BlockRuns, RunNames, StepLine


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWindow:
    """A window: entity, step of its start, and the steps that its past and its targets read."""

    entity: int
    start: int
    past: tuple[int, ...]
    targets: tuple[int, ...]


def windows_of(
    times: NDArray[np.int64], entity: int, shape: WindowShape, *, low: int, high: int, own: bool, max_gap: int | None
) -> Iterator[ExpectedWindow]:
    """All windows of one entity with its targets in `[low, high)`, for an epoch without a shift."""
    num = len(times)
    breaks = [0, *(i for i in range(1, num) if max_gap is not None and times[i] - times[i - 1] > max_gap), num]
    for begin, end in pairwise(breaks):
        first, last = max(low, begin), min(high, end)
        floor = first if own or not shape.ahead else begin
        start = None
        for candidate in range(begin - shape.past, end):
            past = tuple(range(max(candidate, floor), candidate + shape.past))
            targets = tuple(candidate + shape.past + shape.gap + step - 1 for step in shape.ahead) or past
            fits = len(past) >= shape.least_steps and candidate + shape.length + shape.most_shift <= last
            if fits and targets[0] >= first and (start is None or (candidate - start) % shape.stride == 0):
                start = candidate if start is None else start
                yield ExpectedWindow(entity=entity, start=candidate, past=past, targets=targets)


def random_frame(rng: np.random.Generator) -> pd.DataFrame:
    """Steps of 1 to 6 entities with 1 to 60 steps, some with gaps in time, as rows of row groups (`block`)."""
    parts = []
    for entity in range(int(rng.integers(1, 7))):
        steps = int(rng.integers(1, 61))
        time = np.cumsum(np.where(rng.random(steps) < 0.1, rng.integers(2, 9, steps), 1)) + int(rng.integers(0, 9))
        parts.append(pd.DataFrame({"entity": entity, "time": time, "step": np.arange(steps)}))
    frame = pd.concat(parts, ignore_index=True)
    match rng.integers(3):
        case 0:  # Row groups of one file per entity.
            frame["block"] = frame.entity * 100 + frame.step // int(rng.integers(1, 30))
        case 1:  # A file per day: all entities, interleaved in time.
            frame["block"] = frame.time // int(rng.integers(1, 30))
        case _:  # Row groups of one sorted file, which do not end where entities end.
            frame["block"] = np.arange(len(frame)) // int(rng.integers(1, 50))
    names = np.unique(frame.block)
    frame["block"] = rng.permutation(len(names))[np.searchsorted(names, frame.block)]
    return frame


def line_of(frame: pd.DataFrame) -> tuple[StepLine, pd.DataFrame]:
    """StepLine of a frame, and the frame in the order of its steps within blocks, with `row` there."""
    frame = frame.sort_values(["block", "entity", "time"], ignore_index=True)
    frame["row"] = frame.groupby("block").cumcount()
    runs = frame.groupby(["block", "entity"]).agg(
        first=("row", "min"), steps=("row", "size"), t0=("time", "min"), t1=("time", "max")
    )
    block, entity = (runs.index.get_level_values(name).to_numpy(np.int64) for name in ("block", "entity"))
    block_runs = BlockRuns(
        block=block,
        first=runs["first"].to_numpy(np.int64),
        steps=runs.steps.to_numpy(np.int64),
        entity=entity,
        times=runs[["t0", "t1"]].to_numpy(np.int64),
    )
    return StepLine.of(block_runs, int(frame.entity.max()) + 1, RunNames(run=lambda run: f"run {run}")), frame
