"""A new world reports what its driver lacks: each result once in the run's record, however the last world ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.events import EpochEnded, Evaluated, Event, Request
from forebay.training.checkpoint.checkpoint import Checkpoint, DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.driver.local.driver import DirectReporter
from forebay.training.job.job import Job
from forebay.training.runs.run import Run
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

EPOCHS = 2
Report = EpochEnded | Evaluated
MakeRun = Callable[..., Run]


class WorkerKilled(BaseException):
    """Ends a worker at once."""


class LossyReporter(DirectReporter):
    """Reporter from a worker to its run. After `delivers` reports of results it loses everything."""

    def __init__(self, run: Run, delivers: int = 1000, resize_at: int | None = None) -> None:
        super().__init__(run)
        self.sent: list[Event] = []
        self._left, self._resize_at = delivers, resize_at

    def report(self, *events: Event) -> None:
        for event in events:
            self.sent.append(event)
            if isinstance(event, Report):
                self._left -= 1
            if self._left >= 0:
                super().report(event)

    def synced_request(self) -> Request:
        ended = [event.epoch for event in self.sent if isinstance(event, EpochEnded)]
        return Request(target=1) if self._resize_at in ended else Request()


class MortalStore(DirectoryStore):
    """Store whose worker is killed after `saves` checkpoints, or before it with `before`."""

    def __init__(self, folder: Path, saves: int = 1000, *, before: bool = False) -> None:
        super().__init__(folder)
        self._left, self._before, self.saved = saves, before, 0

    def save(self, checkpoint: Checkpoint, *args: Any) -> None:
        if self._left == 0 and self._before:
            raise WorkerKilled
        super().save(checkpoint, *args)
        self.saved += 1
        self._left -= 1
        if self._left == 0 and not self._before:
            raise WorkerKilled


@pytest.fixture
def make_run(make_data: Callable[..., Data], tmp_path: Path) -> MakeRun:
    data = make_data(global_batch=16)
    heard: dict[str, list[Report]] = {}

    def make(name: str, *, epochs: int = EPOCHS) -> Run:
        told = heard.setdefault(name, [])
        job = Job(train=train, data=data, epochs=epochs, storage=str(tmp_path / "runs"), name=name, eval_every=3)
        run = Run(job, [lambda event, _: told.append(event) if isinstance(event, Report) else None])
        run.told = told  # type: ignore[attr-defined]
        return run

    return make


def train(worker: Worker) -> None:
    model, optimizer = worker.setup(nn.Linear(3, 1), partial(torch.optim.SGD, lr=0.01))
    worker.evaluate_with(lambda: {"norm": float(sum(each.detach().norm() for each in model.parameters()))})
    for batch in worker.loader():
        loss = (model(batch["x"])[:, 0] - batch["label"]).square().mean() * batch.weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(loss=loss)


def world(run: Run, line: LossyReporter, store: DirectoryStore) -> Worker:
    spec: TrainSpec = replace(run.worker_spec.train_spec, checkpoint_every=2)
    worker = Worker(spec, SingleProcessCollective(), None, store, line)
    worker.run(train)
    return worker


def results(run: Run) -> list[Any]:
    """Recorded results of the run, without times."""
    timeless = [replace(each, seconds=0.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0) for each in run.result.epochs]
    return [[replace(each, counters={}) for each in timeless], list(run.result.evaluations)]


def test_a_worker_killed_at_any_point_leaves_no_result_lost_and_none_twice(make_run: MakeRun, tmp_path: Path) -> None:
    with make_run("calm") as calm:
        line, store = LossyReporter(calm), MortalStore(tmp_path / "calm")
        world(calm, line, store)
        wanted, num_saves = results(calm), store.saved
        num_reports = len([event for event in line.sent if isinstance(event, Report)])
        calm.finish(None)
    assert len(wanted[0]) == EPOCHS and num_reports == EPOCHS + len(wanted[1]) and num_saves > 2 * EPOCHS
    lost = 0
    for saves in range(1, num_saves + 1):
        for before in (False, True):
            for delivers in {saves} if before else {0, saves // 2, saves}:
                name = f"killed-{saves}-{before}-{delivers}"
                with make_run(name) as run:
                    line = LossyReporter(run, delivers)
                    with pytest.raises(WorkerKilled):
                        world(run, line, MortalStore(tmp_path / name, saves - before, before=before))
                    lost += len([event for event in line.sent if isinstance(event, Report)]) > delivers
                    world(run, LossyReporter(run), DirectoryStore(tmp_path / name))
                    assert results(run) == wanted, name
                    told = [repr(event) for event in run.told]  # type: ignore[attr-defined]
                    assert len(told) == len(set(told)), name
                    run.finish(None)
    assert lost > num_saves / 2, "reports were on their way when the worker was killed"


def test_a_driver_that_died_with_its_record_gets_all_results_again(make_run: MakeRun, tmp_path: Path) -> None:
    with make_run("first") as first:
        world(first, LossyReporter(first), DirectoryStore(tmp_path / "shared"))
        wanted = results(first)
        first.finish(None)
    with make_run("second") as second:
        line = LossyReporter(second)
        world(second, line, DirectoryStore(tmp_path / "shared"))
        assert results(second) == wanted
        second.finish(None)


def test_a_run_that_is_continued_does_not_report_its_last_epoch_again(make_run: MakeRun, tmp_path: Path) -> None:
    with make_run("longer", epochs=1) as run:
        world(run, LossyReporter(run), DirectoryStore(tmp_path / "longer"))
        run.finish(None)
    with make_run("longer", epochs=2) as run:
        line = LossyReporter(run)
        world(run, line, DirectoryStore(tmp_path / "longer"))
        assert [event.epoch for event in line.sent if isinstance(event, EpochEnded)] == [1]
        run.finish(None)


def test_each_of_many_worlds_sends_as_many_events_as_the_first(make_run: MakeRun, tmp_path: Path) -> None:
    worlds, sent = 12, list[int]()
    with make_run("resized", epochs=worlds) as run:
        for epoch in range(worlds):
            line = LossyReporter(run, resize_at=epoch)
            worker = world(run, line, DirectoryStore(tmp_path / "resized"))
            assert worker.resize_to == (None if worker.is_finished else 1)
            assert [event.epoch for event in line.sent if isinstance(event, EpochEnded)] == [epoch]
            sent.append(len([event for event in line.sent if isinstance(event, Report)]))
        run.finish(None)
    assert max(sent) <= sent[0] + 1, sent
