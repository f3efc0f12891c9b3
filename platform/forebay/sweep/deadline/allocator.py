"""Resizes of trials while Ray Tune runs them.

Runs shrink first, and grow by released workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ray import tune
from ray.tune.experiment import Trial

from forebay.sweep.deadline.allocation import WorkerDemand, allocate
from forebay.sweep.deadline.trial_workers import TrialAllocation, TrialWorkers

EVERY_S = 0.5
AT_WORK = (Trial.PENDING, Trial.RUNNING)


@runtime_checkable
class AllocatingScheduler(Protocol):
    """Scheduler that sets the number of workers per trial."""

    def note_allocations(self, allocations: Mapping[str, TrialAllocation], slots: int) -> None:
        """Note the current allocations of the runs.

        `slots` is the number of workers of the sweep.
        """
        ...

    def target_workers(self) -> Mapping[str, int]:
        """Return trial -> number of workers.

        For trials that train or are about to.
        """
        ...

    def trials_to_stop(self) -> Mapping[str, str]:
        """Return trial -> reason, for runs to stop at once.

        They save a checkpoint first.
        """
        ...


def plan_resizes(
    target_workers: Mapping[str, int], allocations: Mapping[str, TrialAllocation], slots: int, reserved: int = 0
) -> tuple[dict[str, int], dict[str, int]]:
    """Return runs to shrink, and runs that may grow now.

    Two mappings, trial -> workers.

    A worker is given to another run only when it is free. Three numbers add up to at most `slots`:
    - occupied workers, including workers of trials that were just stopped
    - `reserved` workers for starting runs
    - the growth granted here

    A run that cannot grow fully waits while others still shrink: one resize instead of two.
    """
    shrink = {
        trial_id: n
        for trial_id, n in target_workers.items()
        if trial_id in allocations and 0 < n < allocations[trial_id].target
    }
    room = slots - reserved - sum(each.occupied for each in allocations.values())
    is_loosening = bool(shrink) or any(
        each.world_size > each.target or trial_id not in target_workers for trial_id, each in allocations.items()
    )
    grow: dict[str, int] = {}
    for trial_id, n in target_workers.items():
        missing = n - allocations[trial_id].target if trial_id in allocations else 0
        given = min(missing, room)
        if (
            given <= 0
            or (given < missing and is_loosening)
            or allocations[trial_id].world_size > allocations[trial_id].target
        ):
            continue
        grow[trial_id] = allocations[trial_id].target + given
        room -= given
    return shrink, grow


class WorkerAllocator(tune.Callback):  # type: ignore[misc]
    """Tune callback that resizes the runs of trials.

    It applies the decisions of an `AllocatingScheduler`. With another scheduler, running trials get even shares.

    `slots` returns the current number of workers. `min_workers` is the number that a trial starts with.
    """

    def __init__(
        self,
        workers: TrialWorkers,
        slots: Callable[[], int],
        scheduler: object = None,
        min_workers: int = 1,
        every_s: float = EVERY_S,
    ) -> None:
        self._workers, self._slots = workers, slots
        self._scheduler = scheduler if isinstance(scheduler, AllocatingScheduler) else None
        self._min_workers = min_workers
        self._every_s = every_s
        self._next_at = 0.0

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's
        """Adjust the workers, twice a second."""
        if time.monotonic() < self._next_at:
            return
        self.turn([trial.trial_id for trial in trials if trial.status in AT_WORK])
        self._next_at = time.monotonic() + self._every_s

    def turn(self, at_work: Sequence[str]) -> None:
        """Make the resizes and stops that are possible now.

        `at_work` are trials that Tune runs or is about to run.
        """
        allocations, slots = self._workers.allocations(), self._slots()
        if self._scheduler is None:
            target_workers = self._even(at_work, allocations, slots)
        else:
            self._scheduler.note_allocations(allocations, slots)
            target_workers = self._scheduler.target_workers()
            for trial_id, reason in self._scheduler.trials_to_stop().items():
                self._workers.stop(trial_id, reason)
        reserved = sum(self._min_workers for trial_id in at_work if trial_id not in allocations)
        shrink, grow = plan_resizes(target_workers, allocations, slots, reserved)
        for trial_id, workers in (*shrink.items(), *grow.items()):
            self._workers.resize(trial_id, workers)

    def _even(
        self, at_work: Sequence[str], allocations: Mapping[str, TrialAllocation], slots: int
    ) -> Mapping[str, int]:
        demands = [
            WorkerDemand(
                trial_id=trial_id,
                min_workers=allocations[trial_id].min_workers,
                max_workers=allocations[trial_id].max_workers,
            )
            if trial_id in allocations
            else WorkerDemand(trial_id=trial_id, min_workers=self._min_workers, max_workers=slots)
            for trial_id in at_work
        ]
        return allocate(demands, slots, "uniform")
