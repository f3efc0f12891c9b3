"""A trial that a scheduler of Ray Tune pauses or stops has ended its epoch and loses no step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from tests.ray.sweep.small_sweeps import STEPS_PER_EPOCH, SmallSweeps

from forebay.sweep.run_sweep import run_sweep
from forebay.training.runs.result import load_result

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def small(tmp_path: Path) -> SmallSweeps:
    return SmallSweeps(tmp_path)


class PauseOnce(FIFOScheduler):
    """Pauses every trial once, after its first epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: list[str] = []

    def __deepcopy__(self, memo: object) -> PauseOnce:
        """Returns itself: a sweep takes a copy, and the test looks at this one afterwards."""
        return self

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if trial.trial_id in self.paused:
            return str(TrialScheduler.CONTINUE)
        self.paused.append(trial.trial_id)
        return str(TrialScheduler.PAUSE)


def test_paused_trials_go_on_from_the_end_of_their_epoch(small: SmallSweeps) -> None:
    scheduler = PauseOnce()
    result = run_sweep(small.sweep({"key": {"grid_search": ["a", "b"]}}, num_trials=2, scheduler=scheduler), show=False)
    assert len(scheduler.paused) == 2
    assert list(result.table["state"]) == ["finished"] * 2
    assert small.steps("a") == small.steps("b") == list(range(2 * STEPS_PER_EPOCH))


@pytest.mark.variation
def test_one_process_serves_one_trial_after_the_other(small: SmallSweeps) -> None:
    space = {"key": {"grid_search": ["a", "b", "c"]}}
    result = run_sweep(small.sweep(space, num_trials=3, max_concurrent=1), show=False)
    assert list(result.table["state"]) == ["finished"] * 3
    assert len(set.union(*(small.processes(key) for key in "abc"))) == 1
    # Each starts from its own beginning, as if it were alone.
    assert small.steps("a") == small.steps("b") == small.steps("c") == list(range(2 * STEPS_PER_EPOCH))
    assert result.table["last_loss"].nunique() == 1


class StopTheNext(FIFOScheduler):
    """Stops all waiting trials of a trial's size after its first epoch."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        for other in tune_controller.get_trials():
            if other.status == trial.PENDING and other.config["cpus"] == trial.config["cpus"]:
                tune_controller.stop_trial(other)
        return str(super().on_trial_result(tune_controller, trial, result))


@pytest.mark.variation
def test_no_process_is_kept_for_a_trial_that_was_stopped_while_it_waited(small: SmallSweeps) -> None:
    """While the CPUs of such a process are taken, a trial of another size does not fit."""
    space = {"cpus": {"grid_search": [5.0, 5.0, 6.0]}}
    result = run_sweep(small.sweep(space, num_trials=3, max_concurrent=3, scheduler=StopTheNext()), show=False)
    ends = sorted(zip(result.table["config/cpus"], result.table["state"], strict=True))
    assert ends == [(5.0, "finished"), (5.0, "stopped"), (6.0, "finished")]


def test_stopped_trial_stands_at_the_end_of_its_epoch(small: SmallSweeps) -> None:
    scheduler = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=2)
    space = {"lr": {"grid_search": [0.05, 1e-6]}}
    result = run_sweep(
        small.sweep(space, num_trials=2, max_concurrent=1, scheduler=scheduler, fixed={"epochs": 3}), show=False
    )
    good, bad = result.table.to_dict("records")
    assert (good["state"], good["epochs"]) == ("finished", 3)
    assert (bad["state"], bad["epochs"]) == ("stopped", 1)
    stopped = load_result(bad["run"])
    assert stopped is not None and stopped.epochs_done == 1 and stopped.stopped is not None
    assert len(small.processes("a")) == 1, "the second trial got a process of its own"
