"""A sweep that Ray Tune cannot restore is refused, not started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray.tune.experiment import Trial
from tests.unit.sweep.made import record, trial

from forebay.errors import SweepFailed
from forebay.sweep.tune.resume import ResumeCheck, load_known_trials


def noted(folder: Path, *trials: str) -> Path:
    """Write the folder as Tune's controller does."""
    states = [[json.dumps({"trial_id": each}), "{}"] for each in trials]
    (folder / "tune").mkdir(exist_ok=True)
    file = folder / "tune" / "experiment_state-2026-01-02_03-04-05.json"
    file.write_text(json.dumps({"trial_data": states, "runner_data": {}}))
    return file


def test_trials_are_those_of_the_newest_file(tmp_path: Path) -> None:
    assert load_known_trials(str(tmp_path), record(trial("a"))) is None
    file = noted(tmp_path, "a", "b")
    (tmp_path / "tune" / "experiment_state-2025-01-02_03-04-05.json").write_text("torn")
    assert load_known_trials(str(tmp_path), record()) == {"a", "b"}
    file.write_text(file.read_text()[:-9])
    with pytest.raises(SweepFailed, match=r"(?s)cannot resume.*is not complete.*a new name"):
        load_known_trials(str(tmp_path), record())


def test_a_record_without_what_tune_knew_of_it_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(SweepFailed, match="its file is missing"):
        load_known_trials(str(tmp_path), record(trial("a", 0.5)))


def test_a_trial_that_was_not_taken_up_ends_the_sweep(tmp_path: Path) -> None:
    a, b = (Trial("any", trial_id=name, stub=True) for name in "ab")
    a.run_metadata.num_failures = 1
    ResumeCheck(frozenset("ab"), str(tmp_path), 0).on_step_begin(0, [a, b])
    assert a.should_recover(), "what a trial met in an earlier start is counted in this one"
    with pytest.raises(SweepFailed, match="1 of 2 trials were not restored, for example b"):
        ResumeCheck(frozenset("ab"), str(tmp_path), 0).on_step_begin(0, [a])
