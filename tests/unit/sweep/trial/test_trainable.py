"""Results of a trial for Tune, and its wait for the end of its run. Whole trials are tested under Ray."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import until

from forebay.errors import Diverged, Hung, InvalidOption
from forebay.events import EpochEnded, Event, Finished
from forebay.sweep.trial import trainable as trial
from forebay.sweep.trial.nested_run import NestedRun
from forebay.sweep.trial.trainable import CHECKPOINT, TrialRun
from forebay.sweep.trial_spec import RESULT_FACTS
from forebay.testing.drivers.bench import STEPS_PER_EPOCH, DriverBench
from forebay.training.runs.control import Control
from forebay.training.worker.worker import Worker


def make_trial_run(**spec: Any) -> TrialRun:
    """A trial without a process of its own."""
    made = TrialRun.__new__(TrialRun)
    made._spec, made._generation, made._trial_info = SimpleNamespace(sweep="ctr", **spec), 0, None
    return made


@pytest.mark.parametrize(("mode", "worst"), [("min", math.inf), ("max", -math.inf)])
def test_a_metric_that_is_no_finite_number_ends_the_trial(mode: str, worst: float) -> None:
    made = make_trial_run(metric="auc", mode=mode)
    for value in (math.nan, math.inf, -math.inf):
        ended = EpochEnded(
            epoch=0, step=3, metrics={"auc": value}, rows=1, seconds=1, wait_s=0, eval_s=0, checkpoint_s=0
        )
        told = made._epoch_facts(ended, is_over=False, is_finished=False)
        assert (told["auc"], told["diverged"], told["done"]) == (worst, True, True)


def test_a_metric_of_the_job_replaces_no_fact_of_the_result() -> None:
    metrics = {"auc": 0.5, **dict.fromkeys(RESULT_FACTS, 3.5)}
    ended = EpochEnded(epoch=0, step=3, metrics=metrics, rows=1, seconds=1, wait_s=0, eval_s=0, checkpoint_s=0)
    told = make_trial_run(metric="auc", mode="max")._epoch_facts(ended, is_over=False, is_finished=False)
    assert (told["auc"], told["epoch"], told["done"]) == (0.5, 1, False)
    assert 3.5 not in told.values()


def test_a_metric_that_nobody_tells_is_refused_with_those_that_are_told() -> None:
    ended = EpochEnded(epoch=0, step=3, metrics={"loss": 1.0}, rows=1, seconds=1, wait_s=0, eval_s=0, checkpoint_s=0)
    with pytest.raises(InvalidOption, match=r"metric='auc' was not reported .*epoch 1; available metrics: loss\."):
        make_trial_run(metric="auc", mode="max")._epoch_facts(ended, is_over=False, is_finished=False)


@pytest.mark.parametrize(("mode", "worst"), [("min", math.inf), ("max", -math.inf)])
def test_a_run_that_a_monitor_has_ended_has_the_worst_value(mode: str, worst: float) -> None:
    made = make_trial_run(metric="auc", mode=mode)
    made._reported_epoch = 2
    nested: Any = SimpleNamespace(first_epoch=0)
    told = made._diverged(nested, Diverged("NanGuard: loss of step 7 not finite"))
    assert (told["auc"], told["epoch"], told["done"], told["finished"]) == (worst, 4, True, False)
    assert told["diverged"] and "not finite" in told["why"]


def fail_at_once(worker: Worker) -> None:
    raise Diverged(f"NanGuard: loss of step {worker.step} not finite")


def test_a_resumed_run_that_diverges_at_once_tells_the_epoch_after_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = DriverBench(tmp_path).job("diverges", epochs=4)
    first = NestedRun(job, "local")
    for epoch in range(2):
        assert first.next_epoch(60.0) is not None
        first.stop("enough") if epoch else first.resume(epoch)
    assert first.join(60.0)
    made = make_trial_run(metric="loss", mode="min")
    made._nested, made._reported_epoch = NestedRun(replace(job, train=fail_at_once), "local"), -1
    monkeypatch.setattr(TrialRun, "_stop_if_asked", lambda *_: False)  # asked by Ray
    told = made.step()
    assert (told["epoch"], told["training_iteration"], told["diverged"]) == (3, 3, True)


def test_a_trial_tells_the_epochs_of_its_own_job(tmp_path: Path) -> None:
    nested = NestedRun(DriverBench(tmp_path).job("tells", epochs=3), "local")
    epoch = nested.next_epoch(60.0)
    assert epoch is not None
    assert make_trial_run(metric="loss", mode="min")._result(nested, epoch)["epochs"] == 3
    nested.stop("enough")
    assert nested.join(60.0)


def test_a_run_that_hangs_after_its_last_epoch_is_not_waited_for(tmp_path: Path) -> None:
    over = threading.Event()

    def linger(event: Event, control: Control) -> None:
        if isinstance(event, Finished):
            over.wait(60.0)

    nested = NestedRun(DriverBench(tmp_path).job("lingers", epochs=1), "local", [linger])
    assert nested.next_epoch(60.0) is not None
    with pytest.raises(Hung, match="hang_timeout_s=0.1"):
        make_trial_run(hang_timeout_s=0.1)._join(nested)
    over.set()
    assert nested.join(60.0)


def test_a_checkpoint_that_is_asked_for_twice_is_the_same_though_the_run_has_gone_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "STORED_S", 60.0)
    bench = DriverBench(tmp_path)
    nested = NestedRun(bench.job("donor", epochs=3), "local")
    made = make_trial_run(metric="loss", mode="min", has_exchange=True, hang_timeout_s=60.0)
    made._nested, made._reported_epoch, made._pinned = nested, -1, None
    monkeypatch.setattr(TrialRun, "_stop_if_asked", lambda *_: False)  # asked by Ray, on a busy machine
    monkeypatch.setattr(TrialRun, "_path", property(lambda _: str(tmp_path / "runs" / "donor")))

    def saved() -> int:
        made.save_checkpoint(str(tmp_path))
        return int(json.loads((tmp_path / CHECKPOINT).read_text())["step"])

    for epoch in (1, 2):
        assert made.step()["epoch"] == epoch
        step = saved()
        assert epoch * STEPS_PER_EPOCH <= step < (epoch + 1) * STEPS_PER_EPOCH
        until(lambda: nested.paused_at is not None or not nested.is_running)
        assert saved() == step
    assert made.step()["done"] and nested.join(60.0)
