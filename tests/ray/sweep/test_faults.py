"""A fault in a trial ends the trial, not the sweep. A trial whose process is lost continues."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import FIFOScheduler
from ray.util.placement_group import placement_group_table
from tests.ray.ending import kill
from tests.ray.sweep.small_sweeps import STEPS_PER_EPOCH, SmallSweeps

from forebay.errors import SweepFailed
from forebay.events import EpochEnded, Event
from forebay.sweep.run_sweep import run_sweep
from forebay.training.runs.control import Callback, Control
from forebay.training.runs.result import load_result

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def small(tmp_path: Path) -> SmallSweeps:
    return SmallSweeps(tmp_path)


def test_trials_fail_one_by_one(small: SmallSweeps) -> None:
    meets = {"grid_search": ["", "raise", "nan", "kill"]}
    result = run_sweep(small.sweep({"meets": meets}, num_trials=4, max_concurrent=2, max_failures=1), show=False)
    found = {row["config/meets"]: row for row in result.table.to_dict("records")}
    assert {name: row["state"] for name, row in found.items()} == {
        "": "finished",
        "raise": "failed",
        "nan": "stopped",
        "kill": "finished",
    }
    assert "ValueError: boom in the train function" in found["raise"]["error"]
    assert "not finite" in found["nan"]["error"]
    assert found["nan"]["best_epoch"] == 1
    # Tried once: a train function would raise the same error again.
    assert small.steps("raise")[-1] == STEPS_PER_EPOCH + 3 and small.steps_redone("raise") == 0
    # It continues from its own checkpoint, which is at most two steps old.
    assert 1 <= small.steps_redone("kill") <= 2 and max(small.steps("kill")) == 2 * STEPS_PER_EPOCH - 1
    assert result.best_config["meets"] in ("", "kill")


@pytest.mark.variation
def test_trial_that_hangs_fails(small: SmallSweeps) -> None:
    with pytest.raises(SweepFailed, match="hang_timeout_s=8"):
        run_sweep(small.sweep({"meets": ["hang"]}, num_trials=1, hang_timeout_s=8.0), show=False)
    assert small.steps("hang")[-1] == STEPS_PER_EPOCH + 3 and small.steps_redone("hang") == 0


@pytest.mark.variation
def test_sweep_of_which_all_trials_fail(small: SmallSweeps) -> None:
    with pytest.raises(SweepFailed, match=r"(?s)every trial of sweep 'tiny' failed \(1\).*boom in the train") as failed:
        run_sweep(small.sweep({"meets": ["raise"]}, num_trials=1), show=False)
    assert len(failed.value.errors) == 1


@pytest.mark.variation  # unit/sweep/trial/test_trainable.py has the refusal
def test_metric_that_nobody_tells(small: SmallSweeps) -> None:
    sweep = small.sweep({"lr": (0.01, 0.1)}, num_trials=1)
    object.__setattr__(sweep, "metric", "auc")
    with pytest.raises(SweepFailed, match="metric='auc' was not reported.*available metrics: loss"):
        run_sweep(sweep, show=False)


class Enough:
    """Ends a run after its first epoch."""

    def __call__(self, event: Event, control: Control) -> None:
        if isinstance(event, EpochEnded):
            control.stop("that was enough")


def enough() -> Sequence[Callback]:
    return [Enough()]


@pytest.mark.variation
def test_a_run_that_its_own_callbacks_end_is_a_stopped_trial(small: SmallSweeps) -> None:
    sweep = small.sweep({"lr": [0.05]}, num_trials=1, fixed={"epochs": 3}, callbacks=enough)
    (row,) = run_sweep(sweep, show=False).table.to_dict("records")
    assert (row["state"], row["epochs"], row["error"]) == ("stopped", 1, None)
    ended = load_result(row["run"])
    assert ended is not None and ended.stopped == "that was enough"
    assert small.steps("a") == list(range(STEPS_PER_EPOCH))


class KillKept(FIFOScheduler):
    """Kills the process of the first finished trial, which Tune caches for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.killed: list[object] = []

    def __deepcopy__(self, memo: object) -> KillKept:
        """Returns itself: a sweep takes a copy, and the test looks at this one afterwards."""
        return self

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if not self.killed:
            actor = trial.temporary_state.ray_actor
            self.killed.append(actor)
            kill(actor)


@pytest.mark.variation
def test_a_process_that_is_lost_between_two_trials_is_replaced(small: SmallSweeps) -> None:
    scheduler = KillKept()
    space = {"key": {"grid_search": ["a", "b", "c"]}}
    result = run_sweep(
        small.sweep(space, num_trials=3, max_concurrent=1, max_failures=1, scheduler=scheduler), show=False
    )
    assert scheduler.killed
    assert list(result.table["state"]) == ["finished"] * 3
    assert small.steps("b") == list(range(2 * STEPS_PER_EPOCH))


@dataclass(frozen=True)
class Dying:
    """Kills the process of a trial, once, but not the worker that trains it."""

    mark: Path

    def __call__(self, event: Event, _control: Control) -> None:
        if isinstance(event, EpochEnded) and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


# A killed driver of a sweep loses all of its trials' processes, see test_restart.py.
@pytest.mark.variation
def test_a_trial_whose_process_is_lost_does_not_keep_its_place(small: SmallSweeps, tmp_path: Path) -> None:
    def dying() -> Sequence[Callback]:
        return [Dying(tmp_path / "has-died")]

    # One worker of five CPUs fits: while Ray keeps the place of the lost one, there is no other.
    options = {"driver": "ray", "callbacks": dying, "max_failures": 1, "fixed": {"cpus": 5.0}}
    result = run_sweep(small.sweep({"lr": [0.05]}, num_trials=1, deadline_s=240.0, **options), show=False)
    assert list(result.table["state"]) == ["finished"] and result.record.slots == 1
    assert set(small.steps("a")) == set(range(2 * STEPS_PER_EPOCH))
    left = [facts for facts in placement_group_table().values() if facts["name"].startswith("forebay-run-tiny.")]
    assert {facts["state"] for facts in left} == {"REMOVED"}
