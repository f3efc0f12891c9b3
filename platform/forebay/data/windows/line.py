"""Line of all steps, ordered by entity and time.

It joins the runs of all blocks end to end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from forebay.data.plan.permute import Ints
from forebay.errors import BadSeries

ARRANGE = "Sort the data by entity and time: fb.Sequences(...).arrange(into=...) does, once."
"""Remedy for runs that overlap."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockRuns:
    """Runs of all blocks, in any order.

    Each array has one entry per run.

    Attributes:
        block: Block of each run, int64 [runs].
        first: First step of the run within the block, int64 [runs].
        steps: Number of steps of the run, int64 [runs].
        entity: Number of the run's entity, from 0, int64 [runs].
        times: First and last time, int64 [runs, 2]. None without a time column: then blocks are in time order.
    """

    block: Ints
    first: Ints
    steps: Ints
    entity: Ints
    times: Ints | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """Names of runs, entities and times, for errors.

    Runs and entities by their number. `remedy` is for runs that overlap.
    """

    run: Callable[[int], str]
    entity: Callable[[int], str] = str
    time: Callable[[int], str] = str
    remedy: str = ARRANGE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLine:
    """Runs in the order of (entity, time).

    An *offset* is a step's number on the line. Nothing is kept per step.

    Attributes:
        block: Block of each run, int64 [runs].
        first: First step of each run within its block, int64 [runs].
        starts: Offset of the first step of each run, and the length of the line, int64 [runs + 1].
        segments: Offset of the first step of each segment, and the length of the line, int64 [segments + 1]. A window
            lies within a segment: the steps of one entity between two gaps.
        entities: Offset of the first step of each entity, and the length of the line, int64 [entities + 1].
    """

    block: Ints
    first: Ints
    starts: Ints
    segments: Ints
    entities: Ints

    @classmethod
    def of(cls, runs: BlockRuns, num_entities: int, names: RunNames) -> StepLine:
        """Join `runs` in order.

        Raises `BadSeries` for runs of an entity that overlap.
        """
        when = runs.block if runs.times is None else np.ascontiguousarray(runs.times[:, 0])
        order = np.lexsort((runs.first, runs.block, when, runs.entity))
        if runs.times is not None:
            _refuse_overlaps(runs, runs.times, order, names)
        steps, entity = runs.steps[order], runs.entity[order]
        starts = np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)
        entities = starts[np.searchsorted(entity, np.arange(num_entities + 1))]
        return cls(
            block=runs.block[order],
            first=runs.first[order],
            starts=starts,
            # An entity without steps has no segment.
            segments=np.unique(entities),
            entities=entities,
        )

    @property
    def num_steps(self) -> int:
        return int(self.starts[-1])

    def cut(self, offsets: Ints) -> StepLine:
        """Start a new segment at each of `offsets`.

        A run that holds one becomes two.
        """
        segments = np.union1d(self.segments, offsets)
        starts = np.union1d(self.starts, offsets)
        run = np.searchsorted(self.starts, starts[:-1], side="right") - 1
        first = self.first[run] + starts[:-1] - self.starts[run]
        return StepLine(block=self.block[run], first=first, starts=starts, segments=segments, entities=self.entities)

    def runs_of(self, start: int, stop: int) -> range:
        """Runs that cover offsets `start` to `stop`.

        The range must not be empty.
        """
        first, last = np.searchsorted(self.starts, [start, stop - 1], side="right") - 1
        return range(int(first), int(last) + 1)


def _refuse_overlaps(runs: BlockRuns, times: Ints, order: Ints, names: RunNames) -> None:
    entity, first, last = runs.entity[order], times[order, 0], times[order, 1]
    overlaps = np.flatnonzero((entity[1:] == entity[:-1]) & (first[1:] <= last[:-1]))
    if not overlaps.size:
        return
    at = int(overlaps[0])
    left, right = int(order[at]), int(order[at + 1])
    whose = f"of entity {names.entity(int(entity[at]))}"
    begin, end, begin_next, end_next = (
        names.time(int(each)) for each in (first[at], last[at], first[at + 1], last[at + 1])
    )
    if last[at] == first[at + 1]:
        what = f"both hold step {end} {whose}"
        remedy = "Keep one of each step: remove duplicates before writing the files."
    else:
        what = f"hold steps {begin} to {end} and {begin_next} to {end_next} {whose}, which overlap"
        remedy = names.remedy
    raise BadSeries(
        f"{names.run(left)} and {names.run(right)} {what}; {overlaps.size} runs overlap the one before. {remedy}",
        blocks=(int(runs.block[left]), int(runs.block[right])),
        entity=int(entity[at]),
        overlaps=int(overlaps.size),
    )
