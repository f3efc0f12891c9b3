"""Laws of `Driver` for a fixed world, as tests."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, NoReturn, get_args

import numpy as np
import pytest
import torch
from torch import nn

from forebay.errors import Hung, InvalidOption, NullLabel, RunFailed
from forebay.events import EpochEnded, Evaluated, Event, Failed, Finished, Preparing, Reported, Started, Warned
from forebay.runtime.foreign_code import begin
from forebay.testing.drivers.bench import STEPS_PER_EPOCH, BenchOrder, DriverBench, weights
from forebay.testing.drivers.events import TRAINED_ROWS
from forebay.training.driver.driver import Driver
from forebay.training.runs.control import Callback, Control
from forebay.training.runs.result import Result, load_result
from forebay.training.state.evaluations import KeepBest
from forebay.training.worker.worker import Worker

PROMPT_S = 60.0
GRACE_S = 30.0
WORKERS = 2
HANG_S = 10.0
HANG_GRACE_S = 120.0  # Includes the start of the workers, which takes most of a minute on a busy machine.

SILENT = {
    "hold": r"holds the interpreter's lock in events\.py:\d+ in _happen",
    "suspend": r"its process \d+ is stopped, by a signal or a debugger",
}
"""Events after which a rank runs no Python, and what others say of it."""

in_each_order = pytest.mark.parametrize("bench", get_args(BenchOrder), indirect=True)
"""Law of the rows that are trained on: holds for one dataset and for a mixture."""


class Heard(list[Event]):
    """Callback that keeps all events."""

    def __call__(self, event: Event, _control: Control) -> None:
        self.append(event)


class FixedSuite:
    """Laws of every driver, for a fixed number of workers.

    Part of `forebay.testing.drivers.suite.DriverSuite`. No process may be left after a test.
    """

    def make_driver(self) -> Driver:
        """Driver to test."""
        raise NotImplementedError

    def leftovers(self) -> list[str]:
        """Leftovers of runs, such as processes."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def nothing_left(self) -> Iterator[None]:
        """Assert that a test leaves no process.

        Waits a few seconds for processes to end.
        """
        yield
        deadline = time.monotonic() + GRACE_S
        while (left := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == [], f"left behind: {left}"

    shared: ClassVar[dict[tuple[type[FixedSuite], BenchOrder], DriverBench]] = {}

    @pytest.fixture
    def bench(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DriverBench:
        """Data, jobs and runs that tests share.

        All tests of the class that train in the same order have the same bench.
        """
        key: tuple[type[FixedSuite], BenchOrder] = type(self), getattr(request, "param", "rows")
        if key not in self.shared:
            self.shared[key] = DriverBench(tmp_path_factory.mktemp("driver"), key[1])
        return self.shared[key]

    @pytest.fixture
    def calm(self, bench: DriverBench) -> Result:
        """An undisturbed run.

        Trained once, looked up by name from then on.
        """
        return self.run(bench, "calm")

    def run(self, bench: DriverBench, name: str, *callbacks: Callback, **options: object) -> Result:
        """Train the bench's job `name` on two workers."""
        return self.make_driver().run(bench.job(name, **({"workers": WORKERS} | options)), callbacks)  # type: ignore[arg-type]

    @in_each_order
    def test_every_row_once_per_epoch_and_all_of_it_told(self, bench: DriverBench) -> None:
        heard = Heard()
        result = self.run(bench, "calm", heard)
        told = [event for event in heard if not isinstance(event, Preparing | Reported)]
        assert told[0] == Started(name="calm", world_size=WORKERS, epochs=2, num_batches=STEPS_PER_EPOCH)
        assert [event.epoch for event in told if isinstance(event, EpochEnded)] == [0, 1]
        assert told[-1] == Finished(name="calm", path=result.path)
        assert result.is_finished
        assert result == load_result(result.path)
        assert result.steps[-1].step == 2 * STEPS_PER_EPOCH
        assert bench.trained("calm") == bench.planned(2)
        bench.assert_every_row_once(result)
        bench.assert_like_undisturbed(result)

    @in_each_order
    def test_killed_worker_is_replaced_and_changes_nothing(self, bench: DriverBench, calm: Result) -> None:
        heard = Heard()
        killed = self.run(bench, "killed", heard, at_step=10, event="kill")
        failed = [event for event in heard if isinstance(event, Failed)]
        assert [(event.failures, event.will_retry) for event in failed] == [(1, True)]
        assert "worker 1" in failed[0].error
        assert killed.failures == 1
        assert bench.rows("killed") == bench.rows("calm")
        assert_same_model(killed, calm)
        bench.assert_every_row_once(killed)

    def test_too_many_deaths_end_the_run_and_keep_its_commits(self, bench: DriverBench) -> None:
        heard = Heard()
        with pytest.raises(RunFailed, match=r"lost workers 1 time, and max_failures=0 .*worker 1") as end:
            self.run(bench, "dying", heard, at_step=4, event="kill always", max_failures=0)
        assert isinstance(heard[-1], Failed)
        assert not heard[-1].will_retry
        assert len(heard[-1].error) < 60, "one line, for a callback"
        assert "'dying' again" in str(end.value)

    def test_exception_stops_at_once_with_its_traceback(self, bench: DriverBench) -> None:
        heard = Heard()
        with pytest.raises(RunFailed, match=r"ValueError: boom in the train function") as failure:
            self.run(bench, "raising", heard, at_step=5, event="raise")
        assert time.time() - bench.happened_at("raising") < PROMPT_S
        assert 'raise ValueError("boom in the train function")' in str(failure.value)
        assert "forebay/training/driver/" not in str(failure.value), "the traceback shows frames of Forebay"
        assert isinstance(failure.value.__cause__, ValueError)
        assert len([event for event in heard if isinstance(event, Started)]) == 1
        error = "ValueError: boom in the train function on rank 1"
        assert heard[-1] == Failed(error=error, failures=1, will_retry=False)

    def test_forebay_error_of_a_train_function_arrives_as_itself(self, bench: DriverBench) -> None:
        def train(_worker: Worker) -> None:
            raise NullLabel("column 'target' has nulls", column="target")

        with pytest.raises(NullLabel) as failure:
            self.run(bench, "null", train=train, workers=1)
        assert failure.value.facts["column"] == "target"

    def test_strategy_that_the_driver_lacks_is_refused_before_anything_is_built(self, bench: DriverBench) -> None:
        def train(worker: Worker) -> None:
            def build_optimizer(_parameters: object) -> NoReturn:
                raise AssertionError("an optimizer was built")

            worker.setup(nn.Linear(1, 1), build_optimizer, strategy="zero9")

        with pytest.raises(InvalidOption, match=r"strategy='zero9' .*'ddp'") as refusal:
            self.run(bench, "strategy", train=train, workers=1)
        assert refusal.value.facts["strategy"] == "zero9"

    def test_hang_ends_the_run_and_is_named(self, bench: DriverBench) -> None:
        heard = Heard()
        with ends_within(HANG_S + HANG_GRACE_S), pytest.raises(Hung, match=r"hang_timeout_s=10") as end:
            self.run(bench, "hanging", heard, at_step=5, event="hang", hang_timeout_s=HANG_S)
        assert len([event for event in heard if isinstance(event, Started)]) == 1, "what hangs was tried again"
        assert isinstance(heard[-1], Failed)
        told = [event.reason for event in heard if isinstance(event, Warned)]
        assert any("rank 1 has taken no step" in each and "events.py" in each for each in told), told
        assert re.match(r"rank 1 has taken no step for \d+ s and is in events\.py:\d+", str(end.value))

    @pytest.mark.parametrize("event", [*SILENT])
    def test_a_rank_that_runs_no_python_is_named(self, bench: DriverBench, event: str) -> None:
        """None of its threads could say where it is."""
        heard = Heard()
        with ends_within(HANG_S + HANG_GRACE_S), pytest.raises(Hung, match=r"hang_timeout_s=10") as end:
            self.run(bench, event, heard, at_step=5, event=event, hang_timeout_s=HANG_S)
        # On a busy machine, a rank may stand still for long before.
        told = [each.reason for each in heard if isinstance(each, Warned) and each.rank == 1][-1:]
        assert told, (str(end.value), heard[-3:])
        assert re.match(rf"rank 1 has taken no step for \d+ s and {SILENT[event]}", told[0])
        assert told[0] in str(end.value)

    def test_callback_that_raises_ends_the_run_and_the_others_are_told(self, bench: DriverBench) -> None:
        heard = Heard()

        def meddle(event: Event, _control: Control) -> None:
            if isinstance(event, Reported):
                raise KeyError("no such metric")

        with pytest.raises(RunFailed, match=r"callback .*meddle raised KeyError"):
            self.run(bench, "meddled", meddle, heard)
        assert isinstance(heard[-1], Failed)
        assert not heard[-1].will_retry

    @in_each_order
    def test_stopped_run_goes_on_under_its_name(self, bench: DriverBench, calm: Result) -> None:
        def stop_soon(event: Event, control: Control) -> None:
            if isinstance(event, Reported):
                control.stop("enough for today")

        first = self.run(bench, "stopped", stop_soon, epochs=40)
        assert first.stopped == "enough for today"
        assert not first.is_finished
        steps = [step.step for step in first.steps]
        second = self.run(bench, "stopped", epochs=max(2, steps[-1] // STEPS_PER_EPOCH + 1))
        assert second.is_finished
        assert second.stopped is None
        bench.assert_every_row_once(second)
        assert {name: bench.rows("stopped")[name] for name in bench.rows("calm")} == bench.rows("calm")
        assert [epoch.metrics for epoch in second.epochs[:2]] == [epoch.metrics for epoch in calm.epochs]

    @in_each_order
    def test_run_that_died_goes_on_in_other_worlds(self, bench: DriverBench) -> None:
        """The mixture's weights change with one worker, then with three."""
        deaths = ((2, 3, "kill always"), (1, 10, "raise"), (3, 12, "kill always"))
        for workers, at_step, event in deaths:
            options = {"at_step": at_step, "event": event, "max_failures": 0, "checkpoint_every": 1}
            with pytest.raises(RunFailed):
                self.run(bench, "reborn", workers=workers, **options)
        result = self.run(bench, "reborn", workers=1)
        assert result.is_finished
        assert {each.size for each in bench.attempts("reborn")} == {1, 2, 3}
        assert bench.steps_redone("reborn") >= len(deaths)
        assert bench.trained("reborn") == bench.planned(2)
        bench.assert_every_row_once(result)
        bench.assert_like_undisturbed(result)

    @in_each_order
    def test_finished_run_returns_its_result_without_training(self, bench: DriverBench, calm: Result) -> None:
        def train(_worker: Worker) -> None:
            raise AssertionError("trained again")

        heard = Heard()
        job = replace(bench.job("calm", workers=WORKERS), train=train)
        assert self.make_driver().run(job, [heard]) == calm
        assert heard == []

    def test_evaluations_and_the_end_that_they_ask_for_outlive_a_death(self, bench: DriverBench) -> None:
        """Each has the model after its step, and none is told twice.

        The number of trained rows grows, so no evaluation is better than the one before the first step.
        """
        steps, heard = [0, 3, 6, STEPS_PER_EPOCH, 9, 12], Heard()
        best = KeepBest(TRAINED_ROWS, mode="min", patience=len(steps) - 1)
        options = {"eval_every": 3, "keep_best": best, "max_failures": 0}
        with pytest.raises(RunFailed):
            self.run(bench, "evaluated", heard, at_step=10, event="kill always", **options)
        result = self.run(bench, "evaluated", heard, workers=1, **options)
        rows = np.cumsum([0, *(len(each) for each in bench.planned(2).values())])
        found = {each.step: each.metrics[TRAINED_ROWS] for each in result.evaluations}
        assert found == {step: rows[step] for step in steps}
        assert [event.step for event in heard if isinstance(event, Evaluated)] == steps
        assert result.stopped == "trained_rows was not better in 5 evaluations since step 0 (0)"
        assert result.best is not None
        assert result.best.step == 0

    def test_interrupt_leaves_nothing(self, bench: DriverBench) -> None:
        heard = Heard()

        def interrupt(event: Event, _control: Control) -> None:
            heard.append(event)
            if isinstance(event, Started):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(bench, "interrupted", interrupt)
        assert heard[-1] == Failed(error="interrupted", failures=1, will_retry=False)


@contextmanager
def ends_within(limit_s: float) -> Iterator[None]:
    """Interrupt the main thread after `limit_s` seconds.

    A driver that hangs must fail only one test.
    """
    late = threading.Event()

    def interrupt() -> None:
        late.set()
        # Sent to that thread, because only its own signal ends a wait in C.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    watch = begin(threading.Timer(limit_s, interrupt))
    try:
        yield
    except KeyboardInterrupt:
        if not late.is_set():
            raise
    finally:
        watch.cancel()
        watch.join()
    assert not late.is_set(), f"it did not end within {limit_s:g} s"


def assert_same_model(left: Result, right: Result) -> None:
    """Assert bit-equal parameters and equal metrics of all epochs.

    The parameters are of the newest checkpoints.
    """
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [epoch.metrics for epoch in left.epochs] == [epoch.metrics for epoch in right.epochs]
