"""Index of all windows of a split: which windows start in each block, and where each begins. O(runs) memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.errors import InvalidOption
from forebay.kernels.calls import locate
from forebay.plan.permute import Ints, derive
from forebay.plan.windows.line import StepLine
from forebay.plan.windows.shape import WindowShape

WINDOW_VERSION = 1
"""Part of every id of an index. Raised whenever a window would get another number."""

_SHIFT = 9  # Continues the uses of keys in plan/file_order.py.
"""Use of a key: the shift of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetBounds:
    """Part of a split: the steps of each entity that may be targets.

    Attributes:
        low: First target step of each entity, counted from its first step, int64 [entities].
        high: End of the target steps, int64 [entities]. Not above `low`: no target.
        own_context: Whether windows look back on steps from `low` only.
    """

    low: Ints
    high: Ints
    own_context: bool = False

    @classmethod
    def all_of(cls, line: StepLine) -> TargetBounds:
        """All steps of all entities."""
        steps = np.diff(line.entities)
        return cls(low=np.zeros_like(steps), high=steps)


class WindowPlaces(NamedTuple):
    """Places of windows on the line: `start`, the first `real` step, and a `run` at or before that, each int64 [n].

    Steps from `start` to `real` are padding.
    """

    start: Ints
    real: Ints
    run: Ints


class WindowIndex:
    """Windows of one split, numbered within the block in which their first real step lies.

    A plan orders them as it orders rows: those of a block are its rows.

    Attributes:
        line: Steps of all entities.
        shape: Shape of a window.
        id: SHA-256 (hex) of everything that the numbers depend on.
        rows: Number of windows that start in each block, int64 [blocks].
    """

    def __init__(
        self, line: StepLine, shape: WindowShape, bounds: TargetBounds, *, num_blocks: int, data_id: str
    ) -> None:
        self.line, self.shape = line, shape
        low, high, floor = _starts(line, shape, bounds)
        segment = np.searchsorted(line.segments, line.starts[:-1], side="right") - 1
        low, high, self._floor = low[segment], high[segment], floor[segment]
        before = _windows_before(line.starts[:-1], low, high, self._floor, shape.stride)
        count = _windows_before(line.starts[1:], low, high, self._floor, shape.stride) - before
        self._first_start = low + before * shape.stride
        self._order = np.argsort(line.block, kind="stable")
        self._ends = np.cumsum(count[self._order])
        self._shift_of = count[self._order] - self._ends
        self.rows = np.bincount(line.block, count, minlength=num_blocks).astype(np.int64)
        self._block_first = np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)
        self.id = _id_of(data_id, shape, bounds, line)

    def __setstate__(self, state: dict[str, object]) -> None:
        """Copy read-only arrays: Ray hands out views of its memory, which compiled loops refuse."""
        for name, value in state.items():
            is_shared = isinstance(value, np.ndarray) and not value.flags.writeable
            self.__dict__[name] = np.array(value) if is_shared else value

    @property
    def num_windows(self) -> int:
        return int(self._block_first[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the index, with those of the line."""
        own = (self._floor, self._first_start, self._order, self._ends, self._shift_of, self.rows, self._block_first)
        line = (self.line.block, self.line.first, self.line.starts, self.line.segments, self.line.entities)
        return sum(array.nbytes for array in own + line)

    def locate(self, block: Ints, row: Ints, shift: int | Ints = 0) -> WindowPlaces:
        """Places of windows `row` of `block`, moved by `shift` steps. One binary search each."""
        run, number = np.empty_like(row), np.empty_like(row)
        locate(self._block_first[block] + row, self._ends, self._order, self._shift_of, run, number)
        start = self._first_start[run] + number * self.shape.stride + shift
        return WindowPlaces(start, np.maximum(start, self._floor[run]), run)

    def shift_of(self, seed: int, epoch: int) -> int:
        """Shift of all windows in an epoch."""
        return derive(_SHIFT, seed, epoch) % self.shape.stride if self.shape.shift else 0

    def neighbours(self, block: int) -> list[int]:
        """Blocks that windows starting in `block` also read, at any shift, ascending."""
        places = self._runs_at(block)
        found: set[int] = set()
        for run, end, shift in zip(
            self._order[places].tolist(), self._ends[places].tolist(), self._shift_of[places].tolist(), strict=True
        ):
            if count := end + shift:
                stop = int(self._first_start[run]) + (count - 1) * self.shape.stride
                stop += self.shape.most_shift + self.shape.length
                runs = self.line.runs_of(int(self.line.starts[run]), stop)
                found.update(self.line.block[runs.start : runs.stop].tolist())
        return sorted(found - {block})

    def runs_in(self, block: int) -> Ints:
        """Runs that lie in a block, int64 [n]."""
        return self._order[self._runs_at(block)]

    def blocks_of(self, places: WindowPlaces) -> Ints:
        """Blocks that windows read, and those that they are numbered in, ascending, each once."""
        line = self.line
        last = np.searchsorted(line.starts, places.start + self.shape.length - 1, side="right") - 1
        counts = last - places.run + 1
        runs = np.arange(int(counts.sum())) + np.repeat(places.run - np.cumsum(counts) + counts, counts)
        return np.unique(line.block[runs])

    def _runs_at(self, block: int) -> slice:
        return slice(*np.searchsorted(self.line.block, [block, block + 1], sorter=self._order).tolist())

    def entity_steps(self, places: WindowPlaces) -> NDArray[np.int64]:
        """Entity and its step at the start of each window, int64 [n, 2]. A padded window starts below 0."""
        entity = np.searchsorted(self.line.entities, self.line.starts[places.run], side="right") - 1
        return np.stack([entity, places.start - self.line.entities[entity]], axis=1)


def _starts(line: StepLine, shape: WindowShape, bounds: TargetBounds) -> tuple[Ints, Ints, Ints]:
    """First start, end of the starts, and first step to read, of each segment, as places on the line."""
    begin, end = line.segments[:-1], line.segments[1:]
    entity = np.searchsorted(line.entities, begin, side="right") - 1
    low = np.clip(line.entities[entity] + bounds.low[entity], begin, end)
    high = np.clip(line.entities[entity] + bounds.high[entity], begin, end)
    # Without look-aheads all steps are targets.
    floor = low if bounds.own_context or not shape.ahead else begin
    first = floor + shape.least_steps - shape.past
    if shape.ahead:
        first = np.maximum(first, low - shape.first_target)
    return first, high - shape.length - shape.most_shift + 1, floor


def _windows_before(place: Ints, low: Ints, high: Ints, floor: Ints, stride: int) -> Ints:
    """Number of windows of a segment whose first real step is before `place`."""
    started = np.maximum(-(-(np.minimum(place, high) - low) // stride), 0)
    return np.where(place > floor, started, 0)


def _id_of(data_id: str, shape: WindowShape, bounds: TargetBounds, line: StepLine) -> str:
    ahead = list(shape.ahead)
    facts = [WINDOW_VERSION, data_id, shape.past, ahead, shape.gap, shape.stride, shape.least_steps, shape.shift]
    digest = hashlib.sha256(json.dumps([*facts, bounds.own_context]).encode())
    for array in (bounds.low, bounds.high, line.segments):
        digest.update(np.ascontiguousarray(array, "<i8").data)
    return digest.hexdigest()


def require_windows(index: WindowIndex, what: str) -> None:
    """Raise `InvalidOption` for a split without a window. `what` names it."""
    if index.num_windows:
        return
    longest = int(np.diff(index.line.segments).max(initial=0))
    raise InvalidOption(
        f"{what} holds no window: the longest series has {longest} steps, and a window needs "
        f"{index.shape.needed_steps} of its split. Use fewer steps of past or future, a smaller min_steps, a larger "
        "max_gap, or another cut.",
        longest=longest,
        needed=index.shape.needed_steps,
    )
