"""`DeadlineScheduler` under real Tune: trials that wait, pause and stop, and runs whose workers move."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from tests.ray.sweep.small_sweeps import SmallSweeps

from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.run_sweep import run_sweep
from forebay.training.runs.result import load_result

pytestmark = pytest.mark.usefixtures("ray_session")

SLOTS, TRIALS, EPOCH_S = 2, 5, 0.5


class CountedClock(DeadlineScheduler):
    """Deadline scheduler whose time advances with results, so that it ends as early on a slow machine.

    It stands still until `trials` trials have reported, and one of them has had `workers` workers.
    """

    def __init__(self, deadline_s: float, slots: int | None = None, *, trials: int = 1, workers: int = 0) -> None:
        super().__init__(deadline_s, slots)
        self._needs, self._told, self._most, self._results = (trials, workers), set(), 0, 0
        self.clock = lambda: self._results * EPOCH_S

    def __deepcopy__(self, memo: object) -> CountedClock:
        """Returns itself: a sweep copies the scheduler, and the copy has to share this clock."""
        return self

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str:
        self._told.add(trial.trial_id)
        trials, workers = self._needs
        self._most = max(self._most, result.get("workers", 0))
        self._results += len(self._told) >= trials and self._most >= workers
        return super().on_trial_result(tune_controller, trial, {**result, "epoch_s": EPOCH_S})


class Tiny(tune.Trainable):
    """Scores its quality times a factor that grows with its steps. Keeps its steps over a pause."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0

    def step(self) -> dict[str, Any]:
        time.sleep(0.05)
        self.steps += 1
        score = self.config["quality"] * (1 - 0.5**self.steps)
        return {"score": score, "steps": self.steps}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "steps").write_text(str(self.steps))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.steps = int(Path(checkpoint_dir, "steps").read_text())


class AllotmentWatch(tune.Callback):
    def __init__(self) -> None:
        self.at_work: list[int] = []
        self.seen: set[tuple[str, ...]] = set()

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self.at_work.append(sum(trial.status in (Trial.PENDING, Trial.RUNNING) for trial in trials))
        self.seen.add(tuple(trial.status for trial in trials[:SLOTS]))


@pytest.mark.variation
def test_tune_starts_no_more_trials_than_there_are_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    scheduler = CountedClock(40.0, SLOTS, trials=SLOTS)
    scheduler.set_limits(SLOTS, (1, SLOTS), epochs=1000)
    watching = AllotmentWatch()
    found = tune.run(
        tune.with_resources(Tiny, {"CPU": 0, "memory": 1 << 20}),
        name="tiny",
        config={"quality": tune.grid_search([0.1 * number for number in range(1, TRIALS + 1)])},
        metric="score",
        mode="max",
        scheduler=scheduler,
        storage_path=str(tmp_path),
        callbacks=[watching],
        verbose=0,
    )
    assert max(watching.at_work) <= SLOTS
    assert [trial.status for trial in found.trials] == [Trial.TERMINATED] * TRIALS
    begun = {trial.trial_id for trial in found.trials if trial.last_result.get("steps")}
    assert len(begun) >= SLOTS
    # The worse of the first two was stopped, because others were waiting.
    assert (Trial.TERMINATED, Trial.RUNNING) in watching.seen


def test_workers_move_between_runs_and_never_exceed_the_cluster(tmp_path: Path) -> None:
    # No time passes until a trial has got workers.
    scheduler = CountedClock(5.0, trials=2, workers=2)
    sweep = SmallSweeps(tmp_path).sweep(
        {"lr": [0.05, 1e-4]},
        driver="ray",
        num_trials=2,
        scheduler=scheduler,
        deadline_s=250.0,
        fixed={"cpus": "2.6", "max_workers": "3", "epochs": "1000", "step_s": "0.05"},
    )
    result = run_sweep(sweep, show=False)
    record = result.record
    assert record.slots == 3
    moments = sorted({count.at_s for trial in record.trials.values() for count in trial.worker_counts})
    there = [sum(_workers_at(trial.worker_counts, at_s) for trial in record.trials.values()) for at_s in moments]
    assert max(there) == 3
    assert set(result.table["state"]) == {"stopped"}
    assert result.best_run is not None
    best = load_result(result.best_run)
    assert best is not None and best.epochs


def _workers_at(worker_counts: Any, at_s: float) -> int:
    return next((count.workers for count in reversed(worker_counts) if count.at_s <= at_s), 0)
