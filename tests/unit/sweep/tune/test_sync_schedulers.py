"""Rounds of HyperBand and of synchronous population-based training end even if a trial never reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining, TrialScheduler

from forebay.sweep.tune.sync_schedulers import end_stalled_rounds


class SyncController:
    """The part of Tune's controller that these schedulers use."""

    search_alg = None

    def __init__(self, scheduler: TrialScheduler, folder: Path) -> None:
        self.trials: list[Trial] = []
        self.live: set[Trial] = set()
        self._scheduler, self._folder = scheduler, folder

    def get_trials(self) -> list[Trial]:
        return self.trials

    def get_live_trials(self) -> set[Trial]:
        return self.live

    def add(self, name: str, status: str = Trial.PENDING) -> Trial:
        """Add a trial as Tune does, when it draws one and after a restart."""
        trial = Trial("any", trial_id=name, config={"lr": 0.1}, stub=True)
        trial.set_status(status)
        self.trials.append(trial)
        if status != Trial.TERMINATED:
            self.live.add(trial)
        self._scheduler.on_trial_add(self, trial)
        return trial

    def stop_trial(self, trial: Trial) -> None:
        self._scheduler.on_trial_remove(self, trial)
        trial.set_status(Trial.TERMINATED)
        self.live.discard(trial)

    def _schedule_trial_save(self, trial: Trial, **options: Any) -> None:
        """Does nothing: no trial continues from it here."""

    def listeners(self, trial: Trial, epoch: int, score: float) -> str:
        result = {"training_iteration": epoch, "score": score}
        decision = self._scheduler.on_trial_result(self, trial, result)
        if decision == TrialScheduler.PAUSE:
            trial.set_status(Trial.PAUSED)
        return str(decision)

    def fails(self, trial: Trial) -> None:
        self._scheduler.on_trial_error(self, trial)
        trial.set_status(Trial.ERROR)

    def starts(self) -> str | None:
        """Name of the trial that trains next."""
        trial = self._scheduler.choose_trial_to_run(self)
        if trial is not None:
            trial.set_status(Trial.RUNNING)
        return trial and str(trial.trial_id)


@pytest.fixture
def hyperband(tmp_path: Path) -> SyncController:
    """Brackets of three, five and nine trials. Trials of the first bracket train nine epochs."""
    return made(HyperBandScheduler(metric="score", mode="max", max_t=9, reduction_factor=3), tmp_path)


@pytest.fixture
def population(tmp_path: Path) -> SyncController:
    mutations: dict[str, Any] = {"lr": tune.uniform(0.1, 1.0)}
    scheduler = PopulationBasedTraining(
        "training_iteration", "score", "max", 2, hyperparam_mutations=mutations, synch=True, log_config=False
    )
    return made(scheduler, tmp_path)


def made(scheduler: TrialScheduler, folder: Path) -> SyncController:
    end_stalled_rounds(scheduler)
    return SyncController(scheduler, folder)


def test_brackets_do_not_wait_for_trials_that_are_over_since_before_a_restart(hyperband: SyncController) -> None:
    hyperband.add("done", Trial.TERMINATED)
    hyperband.add("failed", Trial.ERROR)
    a, b = hyperband.add("a"), hyperband.add("b")
    assert [hyperband.starts(), hyperband.starts()] == ["a", "b"]
    assert [hyperband.listeners(a, 9, 0.5), hyperband.listeners(b, 9, 0.6)] == [
        TrialScheduler.PAUSE,
        TrialScheduler.STOP,
    ]
    assert a.is_finished()


def test_brackets_catch_up_with_trials_that_are_further(hyperband: SyncController) -> None:
    # Trials of the first two brackets are stopped. The third bracket begins with one epoch, then three, then nine.
    others = [hyperband.add(f"other{number}") for number in range(8)]
    a, b = hyperband.add("a"), hyperband.add("b")
    for other in others:
        hyperband.stop_trial(other)
    assert [hyperband.starts(), hyperband.starts()] == ["a", "b"]
    assert hyperband.listeners(a, 5, 0.5) == hyperband.listeners(b, 5, 0.6) == TrialScheduler.PAUSE
    assert hyperband.starts() == "b"


def test_population_does_not_wait_for_one_that_fails_last(population: SyncController) -> None:
    a, b, c = (population.add(name) for name in "abc")
    assert [population.starts() for _ in range(3)] == ["a", "b", "c"]
    assert population.listeners(a, 2, 0.5) == population.listeners(b, 2, 0.6) == TrialScheduler.PAUSE
    assert population.starts() is None
    population.fails(c)
    assert population.starts() in ("a", "b")
    assert population.starts() in ("a", "b")


def test_population_does_not_wait_for_one_that_failed_before_a_restart(population: SyncController) -> None:
    population.add("failed", Trial.ERROR)
    a, b = population.add("a"), population.add("b")
    assert [population.starts(), population.starts()] == ["a", "b"]
    # Further than the first round of a population that starts again.
    assert population.listeners(a, 7, 0.5) == population.listeners(b, 7, 0.6) == TrialScheduler.PAUSE
    assert {population.starts(), population.starts()} == {"a", "b"}


def test_a_round_under_way_is_waited_for(population: SyncController) -> None:
    a, _ = population.add("a"), population.add("b")
    assert [population.starts(), population.starts()] == ["a", "b"]
    population.listeners(a, 2, 0.5)
    assert population.starts() is None
