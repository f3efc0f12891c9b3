"""Elastic jobs on the local driver: worker processes restart at a commit, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forebay.errors import InvalidOption, RunFailed
from forebay.events import EpochEnded, Event, Preparing, Reported, Resized, Started
from forebay.testing.drivers.bench import ROWS, STEPS_PER_EPOCH, DriverBench, weights
from forebay.training.driver.driver import run
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control
from forebay.training.runs.result import Result

pytestmark = pytest.mark.usefixtures("kept_fork_server")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> DriverBench:
    return DriverBench(tmp_path_factory.mktemp("driver"))


class Steer:
    """Sets workers and rows per step at the end of epochs. Records all events."""

    def __init__(self, workers: dict[int, int] | None = None, batch: dict[int, int] | None = None) -> None:
        self.heard: list[Event] = []
        self._workers, self._batch = workers or {}, batch or {}

    def __call__(self, event: Event, control: Control) -> None:
        if not isinstance(event, Reported | Preparing):
            self.heard.append(event)
        if isinstance(event, EpochEnded):
            if event.epoch in self._workers:
                control.resize(self._workers[event.epoch])
            if event.epoch in self._batch:
                control.global_batch(self._batch[event.epoch])

    def of(self, *kinds: type) -> list[Event]:
        return [event for event in self.heard if isinstance(event, kinds)]


def assert_close(left: Result, right: Result) -> None:
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_resized_run_trains_every_row_once_and_comes_to_the_same_model(bench: DriverBench) -> None:
    # Checkpoints are saved at the end of epochs only: that is where the run waits for callbacks.
    options = {"epochs": 3, "checkpoint_every": 1000}
    steer = Steer(workers={0: 3, 1: 2}, batch={1: 40})
    elastic = Elastic(min_workers=1, max_workers=3, start=1)
    resized = run(bench.job("resized", elastic=elastic, **options), "local", [steer])
    assert [repr(event) for event in steer.of(Started, Resized)] == [
        repr(Started(name="resized", world_size=1, epochs=3, num_batches=STEPS_PER_EPOCH)),
        repr(Resized(old=1, new=3, step=STEPS_PER_EPOCH)),
        repr(Started(name="resized", world_size=3, epochs=3, num_batches=STEPS_PER_EPOCH)),
        repr(Resized(old=3, new=2, step=2 * STEPS_PER_EPOCH)),
        repr(Started(name="resized", world_size=2, epochs=3, num_batches=STEPS_PER_EPOCH)),
    ]
    assert (resized.failures, resized.is_finished) == (0, True)
    rows = bench.rows("resized")
    for size, steps in ((1, range(8)), (3, range(8, 16)), (2, range(16, 19))):
        parts = [rows.pop(f"{step:05}-{rank}") for step in steps for rank in range(size)]
        assert sorted(row for part in parts for row in part) == list(range(ROWS))
    assert not rows, "a step was trained in two worlds"
    fixed = run(bench.job("fixed", **options), "local", [Steer(batch={1: 40})])
    assert_close(resized, fixed)
    assert [epoch.step for epoch in resized.epochs] == [epoch.step for epoch in fixed.epochs] == [8, 16, 19]
    for ours, theirs in zip(resized.epochs, fixed.epochs, strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)


def test_batch_that_a_callback_asks_for_changes_at_the_end_of_an_epoch_in_every_run_alike(bench: DriverBench) -> None:
    runs = [run(bench.job(name, checkpoint_every=2), "local", [Steer(batch={0: 60})]) for name in ("first", "second")]
    assert bench.rows("first") == bench.rows("second")
    assert [len(rows) for rows in bench.rows("first").values()] == [15] * 8 + [60, 60]
    ours, theirs = map(weights, runs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("callbacks", [[3], print])
def test_what_is_no_callback_is_refused_before_the_run(bench: DriverBench, callbacks: Any) -> None:
    with pytest.raises(InvalidOption, match=r"callbacks.* functions \(event, control\)"):
        run(bench.job("rigid"), "local", callbacks)


def test_resize_of_a_fixed_job_is_the_callbacks_mistake(bench: DriverBench) -> None:
    with pytest.raises(RunFailed, match=r"Steer.* raised InvalidOption: resize\(2\).*elastic=") as failure:
        run(bench.job("rigid"), "local", [Steer({0: 2})])
    assert isinstance(failure.value.__cause__, InvalidOption)
