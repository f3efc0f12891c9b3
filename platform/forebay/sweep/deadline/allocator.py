"""Hands the workers of a sweep to its trials while Tune runs them: shrinks first, grows by what has been let go."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ray import tune
from ray.tune.experiment import Trial

from forebay.sweep.deadline.allocation import WorkerDemand, allot
from forebay.sweep.deadline.trial_workers import TrialAllocation, TrialWorkers

EVERY_S = 0.5
AT_WORK = (Trial.PENDING, Trial.RUNNING)


@runtime_checkable
class Shares(Protocol):
    """A scheduler that knows how many workers each trial should have."""

    def note_held(self, held: Mapping[str, TrialAllocation], atoms: int) -> None:
        """What the trials' runs have now, of how many there are."""
        ...

    def shares(self) -> Mapping[str, int]:
        """Trial -> workers, for those that train or are about to."""
        ...

    def ending(self) -> Mapping[str, str]:
        """Trial -> why: those whose runs shall commit and end at once."""
        ...


def moves(
    shares: Mapping[str, int], held: Mapping[str, TrialAllocation], atoms: int, reserved: int = 0
) -> tuple[dict[str, int], dict[str, int]]:
    """Which runs are to shrink, and which may grow already, trial -> workers.

    A worker is handed on only once nobody has it: what runs occupy, those of trials that have just been stopped as
    well, what is `reserved` for runs that are about to begin, and what is given here come to `atoms` at most. A run
    that cannot grow all the way waits while others are still letting go, so that it changes once and not twice.
    """
    shrink = {trial_id: n for trial_id, n in shares.items() if trial_id in held and 0 < n < held[trial_id].target}
    room = atoms - reserved - sum(each.occupied for each in held.values())
    is_loosening = bool(shrink) or any(
        each.world_size > each.target or trial_id not in shares for trial_id, each in held.items()
    )
    grow: dict[str, int] = {}
    for trial_id, n in shares.items():
        missing = n - held[trial_id].target if trial_id in held else 0
        given = min(missing, room)
        if given <= 0 or (given < missing and is_loosening) or held[trial_id].world_size > held[trial_id].target:
            continue
        grow[trial_id] = held[trial_id].target + given
        room -= given
    return shrink, grow


class WorkerAllocator(tune.Callback):  # type: ignore[misc]
    """Follows a scheduler that has `shares`; with any other, all trials that train have an even share.

    `atoms` says how many workers there are at the moment, `min_workers` with how many a trial begins.
    """

    def __init__(
        self,
        workers: TrialWorkers,
        atoms: Callable[[], int],
        scheduler: object = None,
        min_workers: int = 1,
        every_s: float = EVERY_S,
    ) -> None:
        self._workers, self._atoms = workers, atoms
        self._scheduler = scheduler if isinstance(scheduler, Shares) else None
        self._min_workers = min_workers
        self._every_s = every_s
        self._next_at = 0.0

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's
        """Look after the workers, twice a second."""
        if time.monotonic() < self._next_at:
            return
        self.turn([trial.trial_id for trial in trials if trial.status in AT_WORK])
        self._next_at = time.monotonic() + self._every_s

    def turn(self, at_work: Sequence[str]) -> None:
        """Ask for what can be asked for now; `at_work` are the trials that Tune runs or is about to."""
        held, atoms = self._workers.held(), self._atoms()
        if self._scheduler is None:
            shares = self._even(at_work, held, atoms)
        else:
            self._scheduler.note_held(held, atoms)
            shares = self._scheduler.shares()
            for trial_id, reason in self._scheduler.ending().items():
                self._workers.end(trial_id, reason)
        reserved = sum(self._min_workers for trial_id in at_work if trial_id not in held)
        shrink, grow = moves(shares, held, atoms, reserved)
        for trial_id, workers in (*shrink.items(), *grow.items()):
            self._workers.ask(trial_id, workers)

    def _even(self, at_work: Sequence[str], held: Mapping[str, TrialAllocation], atoms: int) -> Mapping[str, int]:
        claims = [
            WorkerDemand(
                trial_id=trial_id, min_workers=held[trial_id].min_workers, max_workers=held[trial_id].max_workers
            )
            if trial_id in held
            else WorkerDemand(trial_id=trial_id, min_workers=self._min_workers, max_workers=atoms)
            for trial_id in at_work
        ]
        return allot(claims, atoms, "uniform")
