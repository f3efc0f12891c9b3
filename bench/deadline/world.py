"""Simulated cluster and controller of Tune, as far as schedulers see them, in simulated time.

The schedulers (ours and Ray's ASHA) and the worker allocator are real. Trials train epoch by epoch at the rate of their
workers. Starts, resizes and ends cost the times of the setting. A trial does not train during a resize, which is
harder than in reality: there, the old workers train until the new ones are ready.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

from bench.deadline.setting import DeadlineSetting
from forebay.sweep.deadline.allocator import WorkerAllocator
from forebay.sweep.deadline.policy import Rules
from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.deadline.trial_workers import TrialAllocation

TICKS = 100
NEVER = math.inf
HAIR = 1e-9


@dataclass(slots=True, kw_only=True, eq=False)
class FakeTrial:
    """Simulated trial: the attributes that schedulers see, and its progress."""

    number: int
    trial_id: str
    status: str = Trial.PENDING
    told: int = 0
    progress: float = 0.0
    target: int = 0
    world: int = 0
    busy_until: float = 0.0
    leaves_at: float = NEVER
    startup_s: float | None = None
    resize_s: float | None = None
    history: list[tuple[float, int]] = field(default_factory=list)

    def is_finished(self) -> bool:
        return self.status in (Trial.TERMINATED, Trial.ERROR)

    def set_status(self, status: str) -> None:
        self.status = status

    def set_workers(self, now: float, workers: int) -> None:
        self.target = workers
        self.history.append((now, workers))


class SimulatedWorld:
    """One simulated sweep. `SimulatedWorld(setting, scheduler).run()` returns the value of its best trial."""

    def __init__(self, setting: DeadlineSetting, scheduler: TrialScheduler, workers_each: int = 1) -> None:
        self.now = 0.0
        self._setting, self._scheduler, self._workers_each = setting, scheduler, workers_each
        self.trials = [FakeTrial(number=n, trial_id=f"{n:04d}") for n in range(setting.num_trials)]
        self._by_id = {trial.trial_id: trial for trial in self.trials}
        self._allocator: WorkerAllocator | None = None
        if isinstance(scheduler, DeadlineScheduler):
            scheduler.clock = lambda: self.now
            scheduler.set_limits(setting.slots, (1, setting.slots), setting.epochs)
            self._allocator = WorkerAllocator(self, lambda: setting.slots, scheduler)
        for trial in self.trials:
            scheduler.on_trial_add(self, trial)

    def run(self) -> float:
        setting, tick_s = self._setting, self._setting.deadline_s / TICKS
        next_tick, end = 0.0, setting.deadline_s - setting.stop_s
        while True:
            self._schedule()
            next_tick = next_tick if next_tick > self.now + HAIR else self.now + tick_s
            then = min([next_tick, end, *(self._next_event(trial) for trial in self._begun)])
            self._train(then)
            if self.now >= end - HAIR:
                return self.worth
            self._take_results()

    @property
    def worth(self) -> float:
        """True value of the trial and epoch with the best reported score."""
        seen, true = self._setting.seen, self._setting.true
        best = max(
            ((trial.number, int(np.argmax(seen[trial.number, : trial.told]))) for trial in self.trials if trial.told),
            key=lambda place: seen[place],
            default=None,
        )
        return float(true.min() if best is None else true[best])

    @property
    def _begun(self) -> list[FakeTrial]:
        """Trials that hold workers or have only just released them."""
        return [trial for trial in self.trials if trial.status == Trial.RUNNING or self.now < trial.leaves_at < NEVER]

    # Interface of Tune's controller.

    def get_trials(self) -> list[FakeTrial]:
        return self.trials

    def stop_trial(self, trial: FakeTrial) -> None:
        if trial.status == Trial.RUNNING:
            self._scheduler.on_trial_complete(self, trial, {})
        elif not trial.is_finished():
            self._scheduler.on_trial_remove(self, trial)
        self._leave(trial, Trial.TERMINATED)

    # Interface of the trials' workers (`TrialWorkers`).

    def allocations(self) -> Mapping[str, TrialAllocation]:
        return {
            trial.trial_id: TrialAllocation(
                target=trial.target,
                world_size=trial.world,
                min_workers=1,
                max_workers=self._setting.slots,
                epochs=self._setting.epochs,
            )
            for trial in self.trials
            if self._occupied(trial)
        }

    def resize(self, trial_id: str, workers: int) -> None:
        trial, cost_s = self._by_id[trial_id], self._setting.resize_s
        trial.set_workers(self.now, workers)
        trial.busy_until, trial.resize_s = max(trial.busy_until, self.now) + cost_s, cost_s

    def stop(self, trial_id: str, reason: str) -> None:  # noqa: ARG002 - the protocol's
        if self._by_id[trial_id].status == Trial.RUNNING:
            self.stop_trial(self._by_id[trial_id])

    # Simulated time.

    def _schedule(self) -> None:
        while True:
            if self._allocator is not None:
                self._allocator.turn([trial.trial_id for trial in self.trials if trial.status == Trial.RUNNING])
            room = self._setting.slots - sum(map(self._occupied, self.trials))
            trial = self._scheduler.choose_trial_to_run(self) if room >= self._workers_each else None
            if trial is None:
                return
            trial.status, trial.leaves_at = Trial.RUNNING, NEVER
            trial.set_workers(self.now, self._workers_each)
            trial.world, trial.progress = self._workers_each, 0.0
            trial.startup_s = self._setting.startup_s
            trial.busy_until = self.now + trial.startup_s

    def _occupied(self, trial: FakeTrial) -> int:
        return max(trial.target, trial.world) if self.now < trial.leaves_at else 0

    def _leave(self, trial: FakeTrial, status: str) -> None:
        if trial.status == Trial.RUNNING:
            trial.leaves_at = self.now + self._setting.stop_s
            trial.history.append((trial.leaves_at, 0))
        trial.status = status

    def _rate(self, trial: FakeTrial) -> float:
        return self._setting.speedup(trial.world) / float(self._setting.epoch_s[trial.number])

    def _next_event(self, trial: FakeTrial) -> float:
        if trial.status != Trial.RUNNING:
            return trial.leaves_at if self.now < trial.leaves_at else NEVER
        if self.now < trial.busy_until - HAIR:
            return trial.busy_until
        return self.now + (1 - trial.progress) / self._rate(trial)

    def _train(self, then: float) -> None:
        for trial in self.trials:
            if trial.status != Trial.RUNNING:
                continue
            if self.now >= trial.busy_until - HAIR:
                trial.progress += (then - self.now) * self._rate(trial)
            if then >= trial.busy_until - HAIR:
                trial.world = trial.target
        self.now = then

    def _take_results(self) -> None:
        for trial in self.trials:
            if trial.status != Trial.RUNNING or trial.progress < 1 - HAIR:
                continue
            trial.progress, trial.told = 0.0, trial.told + 1
            result = self._result(trial)
            decision = TrialScheduler.STOP
            if trial.told < self._setting.epochs:
                decision = self._scheduler.on_trial_result(self, trial, result)
            if decision == TrialScheduler.STOP:
                self._scheduler.on_trial_complete(self, trial, result)
            if decision != TrialScheduler.CONTINUE:
                self._leave(trial, Trial.PAUSED if decision == TrialScheduler.PAUSE else Trial.TERMINATED)

    def _result(self, trial: FakeTrial) -> dict[str, Any]:
        rate = self._rate(trial)
        return {
            "score": float(self._setting.seen[trial.number, trial.told - 1]),
            "training_iteration": trial.told,
            "workers": trial.world,
            "rows_per_s": 1000.0 * rate,
            "epoch_s": 1.0 / rate,
            "startup_s": trial.startup_s,
            "resize_s": trial.resize_s,
        }


def play_deadline(setting: DeadlineSetting, rules: Rules | None = None, policy: str = "top") -> float:
    """Play a sweep under `DeadlineScheduler`. Returns the true value of its best trial."""
    scheduler = DeadlineScheduler(setting.deadline_s, setting.slots, policy, metric="score", mode="max", rules=rules)
    return SimulatedWorld(setting, scheduler).run()


def play_asha(setting: DeadlineSetting, workers_each: int, reduction: int) -> float | None:
    """Play a sweep under Ray's ASHA with `workers_each` workers per trial. None if not even one trial fits."""
    if workers_each > setting.slots:
        return None
    np.random.seed(0)  # noqa: NPY002 - the class draws a bracket from it
    scheduler = AsyncHyperBandScheduler(
        metric="score", mode="max", max_t=setting.epochs, grace_period=1, reduction_factor=reduction
    )
    return SimulatedWorld(setting, scheduler, workers_each).run()
