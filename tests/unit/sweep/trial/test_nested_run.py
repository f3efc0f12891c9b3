"""The run of a trial with the local driver: it pauses after every epoch and stops without a lost step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from forebay.errors import InvalidOption, RunFailed
from forebay.events import EpochEnded, Event, Failed, Started
from forebay.sweep.trial import nested_run
from forebay.sweep.trial.nested_run import Clock, NestedRun
from forebay.testing.drivers.bench import STEPS_PER_EPOCH, DriverBench, newest_commit
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles
from forebay.training.runs.control import Control

WAIT_S = 60.0


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


def test_epochs_come_one_by_one(bench: DriverBench) -> None:
    nested = NestedRun(bench.job("one"), "local")
    first = nested.next_epoch(WAIT_S)
    assert first is not None and first.ended.epoch == 0
    assert nested.paused_at == first.ended
    assert first.workers == 1 and first.seconds > 0 and first.startup_s > 0 and first.resize_s is None
    assert len(bench.attempts("one")) == STEPS_PER_EPOCH, "it trained on before it was told to"
    nested.resume(after=0)
    second = nested.next_epoch(WAIT_S)
    assert second is not None and second.ended.epoch == 1
    assert nested.join(WAIT_S)
    assert nested.next_epoch(0) is None
    assert nested.result is not None and nested.result.is_finished


def test_epoch_that_nobody_has_seen_yet_is_not_passed_over(bench: DriverBench) -> None:
    nested = NestedRun(bench.job("unseen", epochs=3), "local")
    assert nested.next_epoch(WAIT_S) is not None
    nested.resume(after=0)
    second = nested.next_epoch(WAIT_S)
    nested.resume(after=0)
    assert second is not None and nested.paused_at == second.ended
    nested.stop("enough")
    assert nested.join(WAIT_S)


def test_stop_at_the_end_of_an_epoch_keeps_just_that(bench: DriverBench) -> None:
    nested = NestedRun(bench.job("stop"), "local")
    assert nested.next_epoch(WAIT_S) is not None
    nested.stop("enough")
    assert nested.join(WAIT_S)
    assert nested.result is not None and nested.result.stopped == "enough"
    assert newest_commit(nested.result).step == STEPS_PER_EPOCH
    assert AttemptFiles(nested.result.path).ended(1) == AttemptEnd(how="stopped", why="enough")
    again = NestedRun(bench.job("stop"), "local")
    second = again.next_epoch(WAIT_S)
    assert second is not None and second.ended.epoch == 1
    assert again.join(WAIT_S)
    assert bench.steps_redone("stop") == 0


def test_stop_before_the_first_event_is_heard(bench: DriverBench) -> None:
    nested = NestedRun(bench.job("early", step_s=2.0, checkpoint_every=1), "local")
    nested.stop("at once")
    assert nested.join(WAIT_S)
    assert nested.result is not None and nested.result.stopped == "at once"
    assert nested.next_epoch(0) is None


def test_finished_run_has_no_epochs_to_tell(bench: DriverBench) -> None:
    first = NestedRun(bench.job("done", epochs=1), "local")
    assert first.join(WAIT_S)
    again = NestedRun(bench.job("done", epochs=1), "local")
    assert again.next_epoch(WAIT_S) is None
    assert again.result is not None and again.result.epochs_done == 1


def test_errors_of_the_run_are_raised_where_it_is_asked(bench: DriverBench) -> None:
    nested = NestedRun(bench.job("bad", at_step=2, event="raise"), "local")
    with pytest.raises(RunFailed, match="boom in the train function"):
        nested.next_epoch(WAIT_S)
    assert nested.join(WAIT_S)


def test_run_that_is_under_way_elsewhere_is_refused(bench: DriverBench) -> None:
    first = NestedRun(bench.job("twice", step_s=0.3), "local")
    assert first.next_epoch(WAIT_S) is not None
    with pytest.raises(InvalidOption, match="under way"):
        NestedRun(bench.job("twice"), "local").next_epoch(WAIT_S)
    first.stop("enough")
    assert first.join(WAIT_S)


def test_what_callbacks_ask_for_is_known_when_the_run_stands(bench: DriverBench) -> None:
    def stop(event: Event, control: Control) -> None:
        if isinstance(event, EpochEnded):
            control.stop("the callback has seen enough")

    nested = NestedRun(bench.job("callback"), "local", [stop])
    assert nested.next_epoch(WAIT_S) is not None
    nested.resume(after=0)
    assert nested.next_epoch(WAIT_S) is None
    assert nested.result is not None and nested.result.stopped == "the callback has seen enough"
    end = AttemptEnd(how="finished", why="the callback has seen enough")
    assert AttemptFiles(nested.result.path).ended(1) == end, "nobody outside of the job asked for its end"


def test_hang_is_noticed_only_where_it_should_train(bench: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested_run, "FIRST_STEP_S", 0.0)
    slow = NestedRun(bench.job("slow", step_s=1.0), "local")
    deadline = time.monotonic() + WAIT_S
    while not slow.is_hung(0.0) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert slow.is_hung(0.0)
    assert slow.next_epoch(0.0) is None and not slow.is_hung(WAIT_S)
    slow.stop("enough")
    standing = NestedRun(bench.job("stands"), "local")
    assert standing.next_epoch(WAIT_S) is not None
    assert not standing.is_hung(0.0)
    standing.stop("enough")
    assert standing.join(WAIT_S) and slow.join(WAIT_S)
    assert not slow.is_hung(0.0)


def test_nobody_is_heard_of_while_lost_workers_are_replaced() -> None:
    clock = Clock()
    started = Started(name="ctr", world_size=2, epochs=2, num_batches=3)
    clock.see(started)
    assert clock.is_training
    clock.see(Failed(error="a worker was lost", failures=1, will_retry=True))
    assert not clock.is_training
    clock.see(started)
    assert clock.is_training
