"""The workers of a sweep's trials: how many there are and shall be, and the one place where that is changed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from forebay.driver.elastic.client import names, part, runs, steer
from forebay.runs.status import RunStatus
from forebay.sweep.layout import generation_of, trial_of

ANSWER_S, SILENT_S = 2.0, 0.4
"""How long an answer may take; and for `PATIENT_EVERY_S` after somebody gave none, who would hold up the sweep."""
PATIENT_EVERY_S = 20.0
FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAllocation:
    """The run of a trial: how many workers it is to have, has, and may have; `epochs` is how many it is for.

    It may have as many as its own callbacks asked for last: a schedule of theirs is an upper bound of its share.
    """

    target: int
    world_size: int
    min_workers: int
    max_workers: int
    epochs: int | None = None

    @property
    def occupied(self) -> int:
        """Workers that nobody else can have: those it is to get, and those it has not let go of yet."""
        return max(self.target, self.world_size)


class TrialWorkers(Protocol):
    """What an allotment needs of the trials' runs. No call blocks for long; a trial that has ended is no error."""

    def held(self) -> Mapping[str, TrialAllocation]:
        """The runs that are under way, by trial."""
        ...

    def ask(self, trial_id: str, workers: int) -> None:
        """Have a trial train on `workers` workers."""
        ...

    def end(self, trial_id: str, reason: str) -> None:
        """Have a trial commit and end in the middle of an epoch."""
        ...


class RayTrialWorkers:
    """Through the coordinators of the runs of the sweep `sweep`."""

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep
        self._known: dict[str, RunStatus] = {}
        self._polled_at = self._missed_at = -math.inf

    def lately_held(self) -> Mapping[str, TrialAllocation]:
        """The same to look at: what was found in the last second, if anything was."""
        if time.monotonic() - self._polled_at > FRESH_S:
            return self.held()
        return {trial_id: _held(status) for trial_id, status in self._known.items()}

    def held(self) -> Mapping[str, TrialAllocation]:
        there = set(names(f"{self._sweep}."))
        is_patient = time.monotonic() - self._missed_at > PATIENT_EVERY_S
        answers = {status.name: status for status in runs(f"{self._sweep}.", ANSWER_S if is_patient else SILENT_S)}
        self._polled_at = time.monotonic()
        if there <= answers.keys():
            self._missed_at = -math.inf
        elif is_patient:
            self._missed_at = self._polled_at
        # A coordinator that is too busy to answer still has its workers.
        silent = {status.name: status for status in self._known.values() if status.name in there - answers.keys()}
        self._known = {}
        for status in (*silent.values(), *answers.values()):
            trial_id = trial_of(status.name, self._sweep)
            if trial_id is not None and self._is_newer(status, self._known.get(trial_id)):
                self._known[trial_id] = status
        return {trial_id: _held(status) for trial_id, status in self._known.items()}

    def ask(self, trial_id: str, workers: int) -> None:
        if trial_id in self._known:
            known = self._known[trial_id]
            steer(known.name, workers)
            # It has them from now on, also if it is silent the next time.
            self._known[trial_id] = replace(known, target=max(known.target, workers))

    def end(self, trial_id: str, reason: str) -> None:
        if trial_id in self._known:
            part(self._known[trial_id].name, reason)

    def _is_newer(self, status: RunStatus, known: RunStatus | None) -> bool:
        return known is None or generation_of(status.name, self._sweep) > generation_of(known.name, self._sweep)


def _held(status: RunStatus) -> TrialAllocation:
    return TrialAllocation(
        target=status.target,
        world_size=status.world_size,
        min_workers=status.min_workers,
        max_workers=status.max_workers if status.asked is None else status.asked,
        epochs=status.epochs,
    )
