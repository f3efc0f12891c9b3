"""The record follows what Tune says; a whole sweep is run under Ray."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray.tune.experiment import Trial

from forebay.errors import WriteFailed
from forebay.sweep.record import Record
from forebay.sweep.record_file import load_record
from forebay.sweep.recorder import Recorder, _last_line


@dataclass
class Held:
    world_size: int


class Told:
    """A recorder whose clock the test winds, and trials that do as they are told."""

    def __init__(self, path: Path, *, made: Record | None = None, is_held: bool = True) -> None:
        self.now, self.seen, self.held = 0.0, 0, dict[str, Held]()
        self.record = made or Record(name="ctr", metric="auc", mode="max", deadline_s=60.0)
        self.recorder = Recorder(
            self.record,
            str(path),
            held=(lambda: self.held) if is_held else None,
            tells=[self.see],
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
    told.held = {"a": Held(1), "b": Held(3)}
    told.pass_time(2.0)
    told.end_epoch(one, 1, auc=0.7, run="ctr.a.1")
    told.end_epoch(two, 1, auc=0.8)
    told.pass_time(2.0)
    assert (told.record.slots_in_use, told.record.best_value, told.record.deadline_left_s) == (4, 0.8, 54.0)
    assert told.record.trials["a"].run == "ctr.a.1"
    told.end_epoch(one, 2, auc=0.75, finished=True, done=True)
    # A scheduler that stops a trial marks its result as done, too.
    told.end_epoch(two, 2, auc=0.7, done=True)
    one.status = two.status = Trial.TERMINATED
    three.status = Trial.PAUSED
    told.pass_time(2.0)
    assert [trial.state for trial in told.record.trials.values()] == ["finished", "stopped", "paused"]
    assert (told.record.slots_in_use, told.seen) == (0, 4)


def test_a_metric_that_is_no_number_is_no_value(tmp_path: Path) -> None:
    told = Told(tmp_path, is_held=False)
    one, two = told.add("a"), told.add("b")
    told.end_epoch(one, 1, auc=0.7, workers=2)
    told.end_epoch(one, 2, auc=float("-inf"), diverged=True)
    told.end_epoch(two, 1, auc=float("nan"))
    trial = told.record.trials["a"]
    assert ([point.value for point in trial.points], trial.workers) == ([0.7, None], 1)
    assert trial.error == "auc is no finite number in epoch 2"
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


def test_storage_that_fails_is_tried_again_but_for_the_last_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "sweep"
    told = Told(folder)
    folder.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        told.pass_time(1.0)
    assert "cannot be written just now" in caplog.text
    with pytest.raises(WriteFailed, match=r"record of sweep 'ctr' cannot be written to .*sweep"):
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
