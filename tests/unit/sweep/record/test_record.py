from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.unit.sweep.made import record, trial

from forebay.errors import InvalidOption
from forebay.sweep.record.record import Point, Record, TrialRecord, WorkerCount, load_record, save_record


def test_the_best_trial_had_the_best_value_at_any_epoch() -> None:
    up = record(trial("a", 0.6, 0.9, 0.7), trial("b", 0.8), trial("c"), trial("d", None))
    assert up.best is not None and (up.best.id, up.best_value) == ("a", 0.9)
    assert [each.id for each in up.ranked] == ["a", "b", "c", "d"]
    down = record(*up.trials.values(), mode="min")
    assert down.best is not None and (down.best.id, down.best_value) == ("a", 0.6)
    assert (record(trial("c"), trial("d", None)).best, record().best_value) == (None, None)


def test_time_counts_while_a_trial_runs() -> None:
    one = TrialRecord(id="a", run="ctr.a", config={}).with_state("running", 5.0).with_workers(2, 6.0)
    assert (one.seconds(9.0), one.workers) == (4.0, 2)
    paused = one.with_state("paused", 15.0)
    assert (paused.seconds(100.0), paused.workers) == (10.0, 0)
    again = paused.with_state("running", 50.0).with_workers(1, 51.0).with_state("finished", 53.0)
    assert (again.seconds(99.0), again.has_ended) == (13.0, True)
    steps = [(6.0, 2), (15.0, 0), (51.0, 1), (53.0, 0)]
    assert again.worker_counts == tuple(WorkerCount(at_s=at_s, workers=workers) for at_s, workers in steps)
    assert again.with_workers(0, 60.0) == again


def test_an_epoch_that_is_told_again_is_no_news() -> None:
    one = trial("a", 0.5, 0.6)
    assert one.with_point(Point(at_s=90.0, epoch=2, value=0.6, workers=3)) == one
    # After a fork from another trial's checkpoint, the same epoch may have another result.
    assert one.with_point(Point(at_s=90.0, epoch=2, value=0.7, workers=3)).epochs == 2


def test_json_is_strict_and_comes_back(tmp_path: Path) -> None:
    config = {"lr": np.float32(0.5), "n": np.int64(3), "limit": math.inf, "sizes": (1, 2), "kind": Path}
    made = record(trial("a", 0.5, None, **config), deadline_s=60.0, slots=4, log_axes=("lr",), stopped="enough")
    save_record(made, str(tmp_path))
    facts = json.loads((tmp_path / "sweep.json").read_text(), parse_constant=pytest.fail)
    kept = facts["trials"][0]["config"]
    assert kept == {"lr": 0.5, "n": 3, "limit": "Infinity", "sizes": [1, 2], "kind": str(Path)}
    loaded = load_record(str(tmp_path))
    assert loaded is not None
    assert loaded.trials["a"].points == made.trials["a"].points
    assert (loaded.deadline_s, loaded.slots, loaded.log_axes, loaded.stopped) == (60.0, 4, ("lr",), "enough")
    assert Record.from_json(loaded.to_json()) == loaded
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    assert load_record(str(tmp_path / "none")) is None
    for text in ("{}", "[", '{"version": 3, "trials": [{"id": "a"}]}', '{"version": 99, "trials": []}'):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(InvalidOption, match=r"not the sweep.json of a Forebay sweep of version 3 .*Remove"):
            load_record(str(tmp_path))
    with pytest.raises(InvalidOption, match="is a file"):
        load_record(str(tmp_path / "sweep.json"))


def test_a_sweep_that_begins_again_lets_its_trials_wait_and_has_its_deadline_anew() -> None:
    made = record(trial("a", 0.5), trial("b", 0.6, state="finished"), trial("c", state="paused"), deadline_s=30.0)
    made.stopped = "forebay stop"
    made.begin(1000.0)
    assert [each.state for each in made.trials.values()] == ["pending", "finished", "paused"]
    assert (made.deadline_left_s, made.started_at, made.stopped) == (30.0, 1000.0, None)
    made.elapsed_s += 40.0
    assert made.deadline_left_s == 0.0
    made.begin(2000.0)
    assert (made.deadline_left_s, made.started_at) == (30.0, 1000.0)
