"""Index of the windows of a split, in O(runs) memory.

It knows which windows start in each block, and where each begins.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from forebay.data.kernels.calls import locate_windows
from forebay.data.plan.order import Order
from forebay.data.plan.permute import Ints, derive
from forebay.data.windows.line import StepLine
from forebay.data.windows.splits import TargetBounds
from forebay.errors import InvalidOption, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowShape:
    """Steps of a window, relative to its start.

    The past is steps `[0, past)`. Look-ahead 1 is step `past + gap`. Without look-aheads a window predicts within its
    past, as language models do: then all steps are targets.

    Attributes:
        past: Steps that the model looks back on.
        ahead: Look-aheads, ascending, each from 1.
        gap: Steps between the past and look-ahead 1.
        stride: Steps between the starts of two windows.
        min_steps: Least real steps of the past. Windows at the start of a series with fewer than `past` are padded.
        shift: Move all windows of an epoch by a number of steps below `stride` that depends on the epoch.

    Raises:
        InvalidOption: A number that can never work.
    """

    past: int
    ahead: tuple[int, ...] = ()
    gap: int = 0
    stride: int = 1
    min_steps: int | None = None
    shift: bool = False

    def __post_init__(self) -> None:
        whole_number("past steps", self.past, least=1)
        whole_number("gap", self.gap)
        whole_number("stride", self.stride, least=1)
        if self.min_steps is not None:
            whole_number("min_steps", self.min_steps, least=1, most=self.past)
        if list(self.ahead) != sorted(set(self.ahead)) or any(step < 1 for step in self.ahead):
            raise InvalidOption(
                f"future steps={self.ahead!r}: give look-aheads of 1 or more, each once, in ascending order.",
                steps=self.ahead,
            )
        if self.gap and not self.ahead:
            raise InvalidOption(
                f"gap={self.gap} lies before a future, but there is none. Give fb.Horizon.", gap=self.gap
            )

    @property
    def least_steps(self) -> int:
        """Least real steps of the past."""
        return self.past if self.min_steps is None else self.min_steps

    @property
    def length(self) -> int:
        """Steps of a window, up to its last target."""
        return self.past + self.gap + (self.ahead[-1] if self.ahead else 0)

    @property
    def first_target(self) -> int:
        """Step of the first target.

        Without look-aheads 0.
        """
        return self.past + self.gap + self.ahead[0] - 1 if self.ahead else 0

    @property
    def most_shift(self) -> int:
        """Largest shift of an epoch."""
        return self.stride - 1 if self.shift else 0

    @property
    def needed_steps(self) -> int:
        """Least steps of a series with a window."""
        return self.length - self.past + self.least_steps + self.most_shift


WINDOW_VERSION = 1
"""Part of every id of an index. Raised whenever a window would get another number."""

_SHIFT = 9  # Continues the uses of keys in plan/order.py.
"""Use of a key: the shift of an epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class LocatedWindows:
    """Windows on the line of steps.

    `start` and the first `real` step are offsets on the line, `run` is a run at or before `real`, each int64 [n]. Steps
    from `start` to `real` are padding.

    Attributes:
        table: The three as rows of one array, int64 [3, n], as the kernels read them.
    """

    table: Ints

    @property
    def start(self) -> Ints:
        offsets: Ints = self.table[0]
        return offsets

    @property
    def real(self) -> Ints:
        offsets: Ints = self.table[1]
        return offsets

    @property
    def run(self) -> Ints:
        offsets: Ints = self.table[2]
        return offsets


class WindowIndex:
    """Windows of one split, numbered by block.

    A window belongs to the block of its first real step. A plan orders the windows of a block as its rows.

    Attributes:
        line: Steps of all entities.
        shape: Shape of a window.
        bounds: Steps of each entity that may be targets.
        data_id: Digest of the data, the entity and the time.
        id: SHA-256 (hex) of everything that the numbers depend on.
        rows: Number of windows that start in each block, int64 [blocks].
    """

    def __init__(
        self, line: StepLine, shape: WindowShape, bounds: TargetBounds, *, num_blocks: int, data_id: str
    ) -> None:
        self.line, self.shape, self.bounds, self.data_id = line, shape, bounds, data_id
        low, high, floor = _starts(line, shape, bounds)
        segment = np.searchsorted(line.segments, line.starts[:-1], side="right") - 1
        low, high, floor = low[segment], high[segment], floor[segment]
        before = _windows_before(line.starts[:-1], low, high, floor, shape.stride)
        count = _windows_before(line.starts[1:], low, high, floor, shape.stride) - before
        order = np.argsort(line.block, kind="stable")
        # Ascending by block, of each run: end of its windows, its number, start of its first window, first offset read.
        self._runs = np.empty((4, len(order)), dtype=np.int64)
        self._runs[0] = np.cumsum(count[order])
        self._runs[1] = order
        self._runs[2] = (low + before * shape.stride)[order]
        self._runs[3] = floor[order]
        self.rows = np.bincount(line.block, count, minlength=num_blocks).astype(np.int64)
        # Of each block: its first window and its first run.
        self._blocks = np.zeros((2, num_blocks + 1), dtype=np.int64)
        self._blocks[0, 1:] = np.cumsum(self.rows)
        self._blocks[1, 1:] = np.cumsum(np.bincount(line.block, minlength=num_blocks))
        self.id = _id_of(data_id, shape, bounds, line)

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the state, with read-only arrays copied.

        Ray hands out views of its memory, which compiled loops refuse.
        """
        for name, value in state.items():
            is_shared = isinstance(value, np.ndarray) and not value.flags.writeable
            self.__dict__[name] = np.array(value) if is_shared else value

    @property
    def num_windows(self) -> int:
        return int(self._blocks[0, -1])

    @property
    def nbytes(self) -> int:
        """Bytes of the index and its line."""
        own = (self._runs, self._blocks, self.rows, self.bounds.low, self.bounds.high)
        line = (self.line.block, self.line.first, self.line.starts, self.line.segments, self.line.entities)
        return sum(array.nbytes for array in own + line)

    def locate(self, block: Ints, row: Ints, shift: int | Ints = 0) -> LocatedWindows:
        """Locate windows `row` of `block`, moved by `shift` steps.

        One binary search each.
        """
        windows = np.empty((3, len(row)), dtype=np.int64)
        windows[0] = shift
        locate_windows(windows, block, row, self._blocks, self._runs, self.shape.stride)
        return LocatedWindows(windows)

    def shift_of(self, seed: int, epoch: int) -> int:
        """Shift of all windows in an epoch."""
        return derive(_SHIFT, seed, epoch) % self.shape.stride if self.shape.shift else 0

    def neighbours(self, block: int) -> list[int]:
        """Other blocks read by windows of `block`, ascending.

        The result holds at any shift.
        """
        ends, numbers, first_starts, _ = self._runs[:, self._runs_at(block)]
        counts = np.diff(ends, prepend=self._blocks[0, block])
        found: set[int] = set()
        for run, start, count in zip(numbers.tolist(), first_starts.tolist(), counts.tolist(), strict=True):
            if count:
                stop = start + (count - 1) * self.shape.stride + self.shape.most_shift + self.shape.length
                runs = self.line.runs_of(int(self.line.starts[run]), stop)
                found.update(self.line.block[runs.start : runs.stop].tolist())
        return sorted(found - {block})

    def runs_in(self, block: int) -> Ints:
        """Runs that lie in a block, int64 [n]."""
        return self._runs[1, self._runs_at(block)]

    def blocks_of(self, windows: LocatedWindows) -> Ints:
        """Blocks that windows read or belong to, ascending.

        Each block comes once.
        """
        line = self.line
        last = np.searchsorted(line.starts, windows.start + self.shape.length - 1, side="right") - 1
        counts = last - windows.run + 1
        runs = np.arange(int(counts.sum())) + np.repeat(windows.run - np.cumsum(counts) + counts, counts)
        return np.unique(line.block[runs])

    def steps_of(self, windows: LocatedWindows) -> tuple[Ints, Ints, Ints]:
        """Return the window, block and step of each step.

        int64 [n] each. The steps run from the first real one to the last target. The step counts within its block.
        Window by window, in the order of the line.
        """
        counts = windows.start + self.shape.length - windows.real
        window = np.repeat(np.arange(len(counts)), counts)
        offset = np.arange(len(window)) + np.repeat(windows.real - np.cumsum(counts) + counts, counts)
        run = np.searchsorted(self.line.starts, offset, side="right") - 1
        return window, self.line.block[run], self.line.first[run] + offset - self.line.starts[run]

    def _runs_at(self, block: int) -> slice:
        return slice(*self._blocks[1, block : block + 2].tolist())

    def entity_steps(self, windows: LocatedWindows) -> NDArray[np.int64]:
        """Entity and first step of each window, int64 [n, 2].

        The step counts within the entity. A padded window starts below 0.
        """
        entity = np.searchsorted(self.line.entities, self.line.starts[windows.run], side="right") - 1
        return np.stack([entity, windows.start - self.line.entities[entity]], axis=1)


def _starts(line: StepLine, shape: WindowShape, bounds: TargetBounds) -> tuple[Ints, Ints, Ints]:
    """Bounds of the window starts of each segment.

    All are offsets on the line: first start, end of the starts, and first step to read, of each segment.
    """
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


def _windows_before(offset: Ints, low: Ints, high: Ints, floor: Ints, stride: int) -> Ints:
    """Windows of a segment whose first real step precedes `offset`."""
    started = np.maximum(-(-(np.minimum(offset, high) - low) // stride), 0)
    return np.where(offset > floor, started, 0)


def _id_of(data_id: str, shape: WindowShape, bounds: TargetBounds, line: StepLine) -> str:
    ahead = list(shape.ahead)
    facts = [WINDOW_VERSION, data_id, shape.past, ahead, shape.gap, shape.stride, shape.least_steps, shape.shift]
    digest = hashlib.sha256(json.dumps([*facts, bounds.own_context]).encode())
    for array in (bounds.low, bounds.high, line.segments):
        digest.update(np.ascontiguousarray(array, "<i8").data)
    return digest.hexdigest()


def window_indices(order: Order) -> tuple[WindowIndex, ...]:
    """Window index of each dataset of an order.

    Empty for rows of row groups.
    """
    return tuple(cast(WindowIndex, index) for index in order.windows)


def require_windows(index: WindowIndex, what: str) -> None:
    """Raise `InvalidOption` for a split without a window.

    `what` names it.
    """
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
