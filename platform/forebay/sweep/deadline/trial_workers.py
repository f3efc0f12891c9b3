"""Workers of a sweep's trials.

Current and target numbers, and the only interface that changes them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from forebay.sweep.layout import generation_of, trial_id_of
from forebay.training.driver.elastic.client import names, request_stop, request_target, runs
from forebay.training.runs.status import RunStatus

ANSWER_S, SILENT_S = 2.0, 0.4
"""Timeouts of an answer. For `PATIENT_EVERY_S` after a timeout the short one applies, so that the sweep is not delayed.
"""
PATIENT_EVERY_S = 20.0
FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAllocation:
    """Workers of a trial's run.

    Target, current number and bounds. `epochs` is the number of epochs of its job.

    `max_workers` includes the last request of the run's own callbacks: their schedule is an upper bound.
    """

    target: int
    world_size: int
    min_workers: int
    max_workers: int
    epochs: int | None = None

    @property
    def occupied(self) -> int:
        """Return the workers that no other trial can have.

        Granted ones, and those that are not released yet.
        """
        return max(self.target, self.world_size)


class TrialWorkers(Protocol):
    """Interface of an allocator to the trials' runs.

    Calls do not block for long. An ended trial is not an error.
    """

    def allocations(self) -> Mapping[str, TrialAllocation]:
        """Running trials and their allocations."""
        ...

    def resize(self, trial_id: str, workers: int) -> None:
        """Set the target number of workers of a trial."""
        ...

    def stop(self, trial_id: str, reason: str) -> None:
        """Make a trial save a checkpoint and end now.

        During an epoch.
        """
        ...


class RayTrialWorkers:
    """Trial workers of a sweep, through its runs' coordinators."""

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep
        self._known: dict[str, RunStatus] = {}
        self._polled_at = self._missed_at = -math.inf

    def recent_allocations(self) -> Mapping[str, TrialAllocation]:
        """Return allocations that are at most a second old.

        For display.
        """
        if time.monotonic() - self._polled_at > FRESH_S:
            return self.allocations()
        return {trial_id: _allocation_of(status) for trial_id, status in self._known.items()}

    def allocations(self) -> Mapping[str, TrialAllocation]:
        there = set(names(f"{self._sweep}."))
        is_patient = time.monotonic() - self._missed_at > PATIENT_EVERY_S
        answers = {status.name: status for status in runs(f"{self._sweep}.", ANSWER_S if is_patient else SILENT_S)}
        self._polled_at = time.monotonic()
        if there <= answers.keys():
            self._missed_at = -math.inf
        elif is_patient:
            self._missed_at = self._polled_at
        # A coordinator that does not answer still has its workers.
        silent = {status.name: status for status in self._known.values() if status.name in there - answers.keys()}
        self._known = {}
        for status in (*silent.values(), *answers.values()):
            trial_id = trial_id_of(status.name, self._sweep)
            if trial_id is not None and self._is_newer(status, self._known.get(trial_id)):
                self._known[trial_id] = status
        return {trial_id: _allocation_of(status) for trial_id, status in self._known.items()}

    def resize(self, trial_id: str, workers: int) -> None:
        if trial_id in self._known:
            known = self._known[trial_id]
            request_target(known.name, workers)
            # They are reserved from now on, even if the next answer is missing.
            self._known[trial_id] = replace(known, target=max(known.target, workers))

    def stop(self, trial_id: str, reason: str) -> None:
        if trial_id in self._known:
            request_stop(self._known[trial_id].name, reason)

    def _is_newer(self, status: RunStatus, known: RunStatus | None) -> bool:
        return known is None or generation_of(status.name, self._sweep) > generation_of(known.name, self._sweep)


def _allocation_of(status: RunStatus) -> TrialAllocation:
    return TrialAllocation(
        target=status.target,
        world_size=status.world_size,
        min_workers=status.min_workers,
        max_workers=status.max_workers if status.callback_target is None else status.callback_target,
        epochs=status.epochs,
    )
