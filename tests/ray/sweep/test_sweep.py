"""Sweeps on Ray: more trials than slots, elastic ones, searchers and schedulers of Ray Tune, and the sweep's end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import tune
from ray.tune.schedulers import HyperBandScheduler
from tests.ray.sweep.small_sweeps import MOST_EPOCHS, STEPS_PER_EPOCH, SmallSweeps, UntilGrown

from forebay.errors import InvalidOption
from forebay.events import EpochEnded, Event
from forebay.sweep.record.record import Record, save_record
from forebay.sweep.run_sweep import run_sweep
from forebay.sweep.tune import stopper
from forebay.training.runs.control import Callback, Control
from forebay.training.runs.result import load_result

pytestmark = pytest.mark.usefixtures("ray_session")


@dataclass(frozen=True)
class Growing:
    """Sets the target to all workers after epoch `after`."""

    after: int

    def __call__(self, event: Event, control: Control) -> None:
        if isinstance(event, EpochEnded) and event.epoch + 1 == self.after:
            control.resize(control.max_workers)


def growing(after: int) -> Sequence[Callback]:
    return [Growing(after), UntilGrown()]


@pytest.fixture
def small(tmp_path: Path) -> SmallSweeps:
    return SmallSweeps(tmp_path)


@pytest.mark.variation  # of test_deadline.py, where workers move between elastic trials, too
def test_a_trial_grows_into_the_place_of_another(small: SmallSweeps) -> None:
    """Two workers of four CPUs fit. One trial outlives the other, and has both workers in the end."""
    space = {"lr": tune.loguniform(1e-3, 1e-1), "checkpoint_every": [1, 4], "max_workers": [2], "after": (1, 2)}
    space["epochs"] = {"grid_search": [MOST_EPOCHS, 3]}
    fixed = {"cpus": "4", "step_s": "0.05"}
    sweep = small.sweep(space, driver="ray", num_trials=2, fixed=fixed, callbacks=growing)
    result = run_sweep(sweep, show=False)
    ends = sorted(zip(result.table["config/epochs"], result.table["state"], strict=True))
    assert ends == [(3, "finished"), (MOST_EPOCHS, "stopped")]
    assert list(result.table["epochs"][result.table["config/epochs"] == 3]) == [3]
    assert result.record.slots == 2
    assert Path(result.html).exists() and result.best_run is not None
    best = load_result(result.best_run)
    assert best is not None and min(epoch.metrics["loss"] for epoch in best.epochs) == result.best_value
    assert max(point.workers for trial in result.record.trials.values() for point in trial.points) == 2


def test_deadline_ends_trials_in_the_middle_of_an_epoch(small: SmallSweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline comes after the first steps of the trial, however long its process takes to start."""

    def monotonic() -> float:
        return time.monotonic() + (1000.0 if len(small.steps("slow")) >= 3 else 0.0)

    monkeypatch.setattr(stopper, "time", SimpleNamespace(monotonic=monotonic))
    scheduler = HyperBandScheduler(time_attr="training_iteration", max_t=9)
    sweep = small.sweep(
        {"key": ["slow"]}, num_trials=1, scheduler=scheduler, deadline_s=1000.0, fixed={"step_s": 0.5, "epochs": 50}
    )
    result = run_sweep(sweep, show=False)
    assert result.stopped == "the deadline of 16:40 was reached"
    assert list(result.table["state"]) == ["stopped"]
    assert 3 <= len(small.steps("slow")) < 9 * STEPS_PER_EPOCH


def test_searcher_without_its_package_is_refused(small: SmallSweeps) -> None:
    with pytest.raises(InvalidOption, match="searcher='zoopt' needs packages"):
        run_sweep(small.sweep({"lr": (0.1, 0.2)}, searcher="zoopt"), show=False)
    with pytest.raises(InvalidOption, match="searcher='optunna' is unknown"):
        run_sweep(small.sweep({"lr": (0.1, 0.2)}, searcher="optunna"), show=False)


def test_sweep_for_another_metric_needs_another_name(small: SmallSweeps) -> None:
    save_record(Record(name="tiny", metric="loss", mode="min"), str(small.folder / "sweeps" / "tiny"))
    other = small.sweep({"lr": [0.1]}, num_trials=1)
    object.__setattr__(other, "mode", "max")
    with pytest.raises(InvalidOption, match="was for the min of 'loss'"):
        run_sweep(other, show=False)
