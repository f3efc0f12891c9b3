"""The record follows the callbacks of Tune. Whole sweeps are tested under Ray."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.tune.experiment import Trial

from forebay.errors import WriteFailed
from forebay.events import EpochEnded
from forebay.sweep.record.backfill import backfill
from forebay.sweep.record.record import Record, load_record
from forebay.sweep.record.recorder import SweepRecorder, _last_line
from forebay.sweep.result import SweepResult
from forebay.training.runs.result import Result, save_result


@dataclass
class HeldTrial:
    world_size: int


class Told:
    """A recorder whose clock the test sets, and trials that the test controls."""

    def __init__(self, path: Path, *, made: Record | None = None, is_held: bool = True) -> None:
        self.now, self.seen, self.allocations = 0.0, 0, dict[str, HeldTrial]()
        self.record = made or Record(name="ctr", metric="auc", mode="max", deadline_s=60.0)
        self.recorder = SweepRecorder(
            self.record,
            str(path),
            allocations=(lambda: self.allocations) if is_held else None,
            listeners=[self.see],
            clock=lambda: self.now,
        )
        self.recorder.setup()
        self.trials: list[Trial] = []

    def see(self, record: Record) -> None:
        assert record is self.record
        self.seen += 1

    def add(self, name: str, **config: Any) -> Trial:
        self.trials.append(Trial("t", trial_id=name, config=config, stub=True))
        return self.trials[-1]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.recorder.on_step_end(1, self.trials)

    def end_epoch(self, trial: Trial, epoch: int, **result: Any) -> None:
        facts = {"epoch": epoch, "workers": 1, "rows_per_s": 100.0, **result}
        self.recorder.on_trial_result(1, self.trials, trial, facts)
        trial.update_last_result({"training_iteration": epoch, **facts})


def test_states_and_values_of_trials(tmp_path: Path) -> None:
    told = Told(tmp_path)
    one, two, three = told.add("a", lr=0.1), told.add("b", lr=0.2), told.add("c", lr=0.3)
    told.pass_time(2.0)
    assert [trial.state for trial in told.record.trials.values()] == ["pending"] * 3
    one.status = two.status = Trial.RUNNING
    told.allocations = {"a": HeldTrial(1), "b": HeldTrial(3)}
    told.pass_time(2.0)
    told.end_epoch(one, 1, auc=0.7, run="ctr.a.1")
    told.end_epoch(two, 1, auc=0.8)
    told.pass_time(2.0)
    assert (told.record.slots_in_use, told.record.best_value, told.record.deadline_left_s) == (4, 0.8, 54.0)
    assert told.record.trials["a"].run == "ctr.a.1"
    told.end_epoch(one, 2, auc=0.75, finished=True, done=True)
    # A scheduler that stops a trial also marks its result as done.
    told.end_epoch(two, 2, auc=0.7, done=True)
    one.status = two.status = Trial.TERMINATED
    three.status = Trial.PAUSED
    told.pass_time(2.0)
    # Held back by the scheduler before its first start.
    assert [trial.state for trial in told.record.trials.values()] == ["finished", "stopped", "pending"]
    assert (told.record.slots_in_use, told.seen) == (0, 4)
    for status in (Trial.RUNNING, Trial.PAUSED):
        three.status = status
        told.pass_time(2.0)
    assert told.record.trials["c"].state == "paused"


def test_the_deadline_counts_from_the_call_and_not_from_the_first_trial(tmp_path: Path) -> None:
    record = Record(name="ctr", metric="auc", mode="max", deadline_s=60.0, elapsed_s=100.0)
    SweepRecorder(record, str(tmp_path), 5.0, clock=lambda: 25.0).setup()
    assert (record.deadline_at_s, record.deadline_left_s) == (140.0, 40.0)
    SweepRecorder(record, str(tmp_path), 5.0, clock=lambda: 95.0).setup()
    assert record.deadline_left_s == 0.0


def test_nobody_is_told_that_trials_are_over_which_are_only_cut_off(tmp_path: Path) -> None:
    told = Told(tmp_path)
    one = told.add("a")
    one.status = Trial.RUNNING
    told.pass_time(2.0)
    seen = told.seen
    one.status = Trial.TERMINATED  # as Tune does with all trials once the sweep is interrupted
    told.recorder.on_experiment_end(told.trials)
    assert told.seen == seen and told.record.trials["a"].state == "stopped"


def test_the_error_of_a_trial_has_no_credentials(tmp_path: Path) -> None:
    told = Told(tmp_path)
    failed = told.add("a")
    failed.status = Trial.ERROR
    failed.get_error = lambda: ValueError("ValueError: cannot read s3://AKIA:sesame@bucket/x")
    told.pass_time(2.0)
    assert told.record.trials["a"].error == "ValueError: cannot read s3://***@bucket/x"


def test_configs_are_as_the_job_gets_them(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.add("a", dim=np.int64(8), kind=np.str_("adam"), lr=0.1)
    told.pass_time(2.0)
    config = told.record.trials["a"].config
    assert config == {"dim": 8, "kind": "adam", "lr": 0.1}
    assert [type(value) for value in config.values()] == [int, str, float]


def test_a_metric_that_is_no_number_is_no_value(tmp_path: Path) -> None:
    told = Told(tmp_path, is_held=False)
    one, two = told.add("a"), told.add("b")
    told.end_epoch(one, 1, auc=0.7, workers=2)
    told.end_epoch(one, 2, auc=float("-inf"), diverged=True)
    told.end_epoch(two, 1, auc=float("nan"))
    trial = told.record.trials["a"]
    assert ([point.value for point in trial.points], trial.workers) == ([0.7, None], 1)
    assert trial.error == "auc is not finite in epoch 2"
    assert told.record.trials["b"].points[0].value is None


def test_the_file_is_written_now_and_then_and_gone_on_with(tmp_path: Path) -> None:
    told = Told(tmp_path)
    one = told.add("a", lr=0.1)
    one.status = Trial.RUNNING
    told.pass_time(1.0)
    written = (tmp_path / "sweep.json").stat().st_mtime_ns
    told.pass_time(0.5)
    assert (tmp_path / "sweep.json").stat().st_mtime_ns == written
    told.end_epoch(one, 1, auc=0.7)
    told.pass_time(8.5)
    made = load_record(str(tmp_path))
    assert made is not None and made.trials["a"].state == "running"
    again = Told(tmp_path, made=made)
    assert made.trials["a"].state == "pending"
    again.add("a", lr=0.1).status = Trial.RUNNING
    again.pass_time(5.0)
    again.end_epoch(again.trials[0], 2, auc=0.8)
    assert [point.at_s for point in made.trials["a"].points] == [1.5, 15.0]
    again.recorder.close("enough")
    assert json.loads((tmp_path / "sweep.json").read_text())["stopped"] == "enough"
    assert made.trials["a"].state == "pending"


def test_the_best_keeps_its_run_and_config_when_the_trial_takes_over_others(tmp_path: Path) -> None:
    told = Told(tmp_path)
    one = told.add("a", lr=0.1)
    told.end_epoch(one, 1, auc=0.5, run="ctr.a", config={"lr": 0.1})
    # Tune calls back with a result after its scheduler, which may already have set the trial's next config.
    one.set_config({"lr": 0.9})
    told.end_epoch(one, 2, auc=0.8, run="ctr.a", config={"lr": 0.1})
    told.end_epoch(one, 3, auc=0.6, run="ctr.a.1", config={"lr": 0.9})
    told.pass_time(2.0)
    result = SweepResult.of(told.record, str(tmp_path))
    assert (result.best_value, result.best_config) == (0.8, {"lr": 0.1})
    assert result.best_run == str(tmp_path / "runs" / "ctr.a")
    assert list(result.table["config/lr"]) == [0.1]
    trial = told.record.trials["a"]
    assert (trial.run, trial.config) == ("ctr.a.1", {"lr": 0.9})
    told.end_epoch(one, 4, auc=0.9, run="ctr.a.1", config={"lr": 0.9})
    assert SweepResult.of(told.record, str(tmp_path)).best_config == {"lr": 0.9}


def test_epochs_that_nobody_told_are_found_in_the_runs(tmp_path: Path) -> None:
    told = Told(tmp_path)
    one, two = told.add("a", lr=0.1), told.add("b", lr=0.2)
    one.status = two.status = Trial.RUNNING
    told.allocations = {"a": HeldTrial(1), "b": HeldTrial(2)}
    told.pass_time(1.0)
    told.end_epoch(one, 1, auc=0.5, run="ctr.a")
    told.end_epoch(one, 3, auc=0.6, run="ctr.a")
    told.end_epoch(two, 2, auc=0.5, run="ctr.b.1")
    save_epochs(tmp_path, "ctr.a", 0.5, 0.9, 0.6, float("nan"))
    # The first two belong to the trial from which it was forked.
    save_epochs(tmp_path, "ctr.b.1", 0.99, 0.5, 0.7)
    one.status = two.status = Trial.TERMINATED
    told.pass_time(1.0)
    told.recorder.close()
    made = load_record(str(tmp_path))
    assert made is not None
    points = {name: [(point.epoch, point.value) for point in trial.points] for name, trial in made.trials.items()}
    assert points == {"a": [(1, 0.5), (2, 0.9), (3, 0.6), (4, None)], "b": [(2, 0.5), (3, 0.7)]}
    assert [point.at_s for point in made.trials["a"].points] == [1.0, 1.0, 1.0, 2.0]
    assert (made.trials["a"].epochs, made.best_value) == (4, 0.9)
    backfill(made, str(tmp_path))
    assert [trial.epochs for trial in made.trials.values()] == [4, 3]


def save_epochs(folder: Path, run: str, *values: float) -> None:
    facts = {"rows": 10, "seconds": 1.0, "wait_s": 0.0, "eval_s": 0.0, "checkpoint_s": 0.0}
    epochs = tuple(
        EpochEnded(epoch=number, step=number, metrics={"auc": value}, **facts) for number, value in enumerate(values)
    )
    save_result(Result(name=run, path=str(folder / "runs" / run), plan_id="p", num_epochs=9, epochs=epochs))


def test_storage_that_fails_is_tried_again_but_for_the_last_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "sweep"
    told = Told(folder)
    folder.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        told.pass_time(1.0)
    assert "cannot be written at the moment" in caplog.text
    with pytest.raises(WriteFailed, match=r"record of sweep 'ctr' could not be written to .*sweep"):
        told.recorder.close()
    folder.unlink()
    told.pass_time(1.0)
    assert load_record(str(folder)) is not None


def test_an_error_is_the_last_line_of_its_traceback() -> None:
    text = "ray::TrialRun.step()\n  File a.py\nforebay.errors.BadJob: no parameter 'x'. It takes:\n  lr: float\n"
    assert _last_line(text) == "BadJob: no parameter 'x'. It takes:"
    assert (
        _last_line("Traceback:\n  1 / 0\nZeroDivisionError: division by zero\n\n")
        == "ZeroDivisionError: division by zero"
    )


def test_epochs_that_are_trained_again_replace_those_before(tmp_path: Path) -> None:
    told = Told(tmp_path)
    trial = told.add("a", lr=0.1)
    for epoch, value in ((1, 0.5), (2, 0.6), (3, 0.7), (2, 0.61), (3, 0.69)):
        told.end_epoch(trial, epoch, auc=value)
    known = told.record.trials["a"]
    assert [(point.epoch, point.value) for point in known.points] == [(1, 0.5), (2, 0.61), (3, 0.69)]
    assert told.record.best_value == 0.69
