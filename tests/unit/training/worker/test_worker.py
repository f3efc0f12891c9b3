"""The worker in a world of one: counting, reporting, saving and restoring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.errors import BadJob, CursorMismatch, InvalidOption, TooManyRanks
from forebay.events import EpochEnded, Reported
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker
from forebay.world import World

NUM_ROWS = 43
PATIENCE_S = 60.0


class Killed(Exception):
    """Stands for the death of the worker."""


class WorkerModel(nn.Module):
    """Model with dropout: its training depends on the random generator, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)
        )

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layers(batch["x"]).squeeze(1)


class WorkerRun:
    """Runs one train function again and again over the same checkpoints, as a driver would."""

    def __init__(self, train_spec: TrainSpec, folder: Path, recorder: Any) -> None:
        self.train_spec, self.folder, self.recorder = train_spec, folder, recorder
        self.seen: list[list[int]] = []
        self.model: nn.Module | None = None

    def worker(self) -> Worker:
        return Worker(self.train_spec, SingleProcessCollective(), None, DirectoryStore(self.folder), self.recorder)

    def train(self, *, die_at: int | None = None) -> Worker:
        worker = self.worker()
        with suppress(Killed):
            worker.run(partial(self._train, die_at=die_at))
        return worker

    def _train(self, worker: Worker, die_at: int | None) -> None:
        model, optimizer = worker.setup(WorkerModel(), partial(torch.optim.Adam, lr=0.05))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        worker.track(scheduler=scheduler)
        del self.seen[worker.step :]
        self.model = model
        for batch in worker.loader():
            if worker.step == die_at:
                raise Killed
            self.seen.append(batch["id"].tolist())
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"]) * batch.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            worker.commit(loss=loss)

    def parameters(self) -> list[torch.Tensor]:
        assert self.model is not None
        return [*self.model.state_dict().values()]


@pytest.fixture
def make_run(make_data: Callable[..., Data], tmp_path: Path, make_recorder: type) -> Callable[..., WorkerRun]:
    data = make_data()

    def make(name: str = "commits", *, stop_at: int | None = None, data: Data = data, **options: Any) -> WorkerRun:
        train_spec = TrainSpec(data=data, **({"epochs": 3, "seed": 5, "checkpoint_every": 2} | options))
        return WorkerRun(train_spec, tmp_path / name, make_recorder(stop_at))

    return make


def assert_bit_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("deaths", [[1], [2], [5], [6], [7], [17], [1, 4, 4, 9, 13]])
def test_a_resumed_run_equals_the_undisturbed_one_bit_for_bit(
    make_run: Callable[..., WorkerRun], deaths: list[int]
) -> None:
    undisturbed = make_run("undisturbed")
    undisturbed.train()
    run = make_run("disturbed")
    for step in deaths:
        run.train(die_at=step)
    worker = run.train()
    assert (worker.step, worker.epoch, worker.stopped) == (18, 3, None)
    assert run.seen == undisturbed.seen
    assert_bit_equal(run.parameters(), undisturbed.parameters())
    assert run.recorder.of(Reported)[-1].rows == 3 * NUM_ROWS
    for one, other in zip(last_account(run), last_account(undisturbed), strict=True):
        assert (one.epoch, one.step, one.rows) == (other.epoch, other.step, other.rows)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-12)


def last_account(run: WorkerRun) -> list[EpochEnded]:
    """The last report of each epoch. An epoch may be reported twice, and the later report is valid."""
    return list({event.epoch: event for event in run.recorder.of(EpochEnded)}.values())


def test_each_epoch_trains_every_row_once(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run()
    run.train()
    for epoch in range(3):
        rows = [row for batch in run.seen[6 * epoch : 6 * epoch + 6] for row in batch]
        assert sorted(rows) == list(range(NUM_ROWS))


def test_a_finished_run_trains_nothing_more(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run()
    run.train()
    before, parameters = list(run.seen), run.parameters()
    run.train(die_at=0)
    assert run.seen == before
    assert_bit_equal(run.parameters(), parameters)


def test_the_end_of_an_epoch_is_told_again_after_a_resume_from_it(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run(checkpoint_every=100)
    run.train(die_at=8)
    run.recorder.forget()
    run.train(die_at=9)
    (ended,) = run.recorder.of(EpochEnded)
    assert (ended.epoch, ended.step, ended.rows) == (0, 6, NUM_ROWS)


def test_all_epochs_so_far_are_told_again_after_a_resume(make_run: Callable[..., WorkerRun]) -> None:
    """The driver may have died epochs ago: the worker reports to the next driver what the old one missed."""
    run = make_run()
    run.train(die_at=15)
    first = run.recorder.of(EpochEnded)
    run.recorder.forget()
    run.train()
    again = run.recorder.of(EpochEnded)
    assert [event.epoch for event in again] == [0, 1, 2]
    assert again[:2] == first, "the account that is told again is another one"


def test_events_of_a_run(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run()
    run.train()
    ended, reported = run.recorder.of(EpochEnded), run.recorder.of(Reported)
    assert [(event.epoch, event.step, event.rows, event.dropped_rows) for event in ended] == [
        (0, 6, 43, 0),
        (1, 12, 43, 0),
        (2, 18, 43, 0),
    ]
    assert reported[0].step == 1
    last_steps = {event.step: event for event in reported}
    for epoch in range(3):
        last = last_steps[6 * epoch + 6]
        assert (last.epoch, last.position, last.rows) == (epoch, NUM_ROWS, NUM_ROWS * (epoch + 1))
    for event in ended:
        assert event.seconds >= event.wait_s + event.checkpoint_s > 0
        assert event.counters["rows"] == 43 and event.counters["batches"] == 6


@pytest.mark.parametrize("every_s", [0.0, 1e6])
def test_first_steps_are_all_reported_whatever_their_speed(
    make_run: Callable[..., WorkerRun], monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    monkeypatch.setattr("forebay.training.worker.step_reporter.REPORT_EVERY_S", every_s)
    run = make_run()
    loss = torch.zeros((), dtype=torch.float64)

    def train(worker: Worker) -> None:
        for _ in worker.loader():
            worker.commit(loss=loss.fill_(worker.step))  # one tensor, which each step overwrites

    run.worker().run(train)
    assert [(event.step, event.metrics["loss"]) for event in run.recorder.of(Reported)] == [
        (step, step - 1.0) for step in range(1, 19)
    ]


def test_steps_in_a_checkpoint_were_reported_when_a_worker_dies(
    make_run: Callable[..., WorkerRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.training.worker.step_reporter.REPORT_EVERY_S", 1e6)
    run = make_run(checkpoint_every=4)
    run.train(die_at=10)
    assert [event.step for event in run.recorder.of(Reported)] == [*range(1, 9)]


def test_later_steps_are_thinned_but_for_the_last_of_an_epoch(
    make_run: Callable[..., WorkerRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.training.worker.step_reporter.REPORT_EVERY_S", 1e6)
    monkeypatch.setattr("forebay.training.worker.step_reporter.MAX_STEPS", 2)
    run = make_run()
    run.train()
    assert [event.step for event in run.recorder.of(Reported)] == [1, 2, 6, 12, 18]


def test_unsaved_steps_never_read_a_metric(make_run: Callable[..., WorkerRun], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.training.worker.step_reporter.REPORT_EVERY_S", 1e6)
    reads: list[str] = []

    def spy(name: str) -> None:
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda tensor: (reads.append(name), original(tensor))[1])

    for name in ("__float__", "tolist", "item"):
        spy(name)

    def train(worker: Worker) -> None:
        for _ in worker.loader():
            worker.commit(loss=torch.zeros(()))

    make_run(checkpoint_every=100).worker().run(train)
    assert 0 < len(reads) <= 1 + 2 * 3  # the first step, then steps and means at the end of each epoch


def test_epoch_metrics_are_means_over_what_was_given(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run(epochs=2)

    def train(worker: Worker) -> None:
        for batch in worker.loader():
            if batch.ends_epoch:
                worker.report(auc=0.5 + worker.epoch)
            big = torch.tensor(2.0**24 + 2 * worker.step)  # six of these do not add up in float32
            worker.commit(loss=torch.tensor(float(worker.step), requires_grad=True), big=big)

    run.worker().run(train)
    first, second = run.recorder.of(EpochEnded)
    assert first.metrics == {"loss": 2.5, "big": 2.0**24 + 5, "auc": 0.5}
    assert second.metrics == {"loss": 8.5, "big": 2.0**24 + 17, "auc": 1.5}


def test_stop_takes_effect_at_a_saved_commit_and_the_run_goes_on_later(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run(stop_at=2)
    worker = run.train()
    assert (worker.stopped, worker.step) == ("enough", 4)
    again = make_run()
    again.seen = run.seen
    worker = again.train()
    assert (worker.stopped, worker.step) == (None, 18)
    undisturbed = make_run("undisturbed")
    undisturbed.train()
    assert again.seen == undisturbed.seen
    assert_bit_equal(again.parameters(), undisturbed.parameters())


def test_asked_to_stop_at_its_end_a_run_is_finished_not_stopped(make_run: Callable[..., WorkerRun]) -> None:
    worker = make_run(epochs=1, checkpoint_every=100, stop_at=1).train()
    assert (worker.stopped, worker.epoch) == (None, 1)


def test_restore_within_the_loop_goes_back(make_run: Callable[..., WorkerRun]) -> None:
    run, seen, went_back = make_run(epochs=1), [], []

    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(WorkerModel(), partial(torch.optim.SGD, lr=0.1))
        for batch in worker.loader():
            seen.append((worker.step, batch["id"].tolist(), torch.rand(1).item()))
            if worker.step == 3 and not went_back:
                went_back.append(worker.restore())
                continue
            model(batch).sum().backward()
            optimizer.step()
            worker.commit()

    run.worker().run(train)
    assert went_back == [True]
    assert [step for step, _, _ in seen] == [0, 1, 2, 3, 2, 3, 4, 5]
    assert seen[2:4] == seen[4:6]


def test_gradients_may_be_gathered_over_several_batches(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run(epochs=1)

    def train(worker: Worker) -> None:
        for count, _ in enumerate(worker.loader(), 1):
            if count % 3 == 0:
                worker.commit()

    run.worker().run(train)
    (ended,) = run.recorder.of(EpochEnded)
    assert (ended.step, ended.rows) == (2, NUM_ROWS)


def test_a_second_loop_goes_on_after_a_break(make_run: Callable[..., WorkerRun]) -> None:
    run, seen = make_run(epochs=1), []

    def train(worker: Worker) -> None:
        for _ in range(2):
            for batch in worker.loader():
                seen.extend(batch["id"].tolist())
                worker.commit()
                if worker.step == 4:
                    break

    run.worker().run(train)
    assert sorted(seen) == list(range(NUM_ROWS))


def test_misuse_is_told(make_run: Callable[..., WorkerRun]) -> None:
    with pytest.raises(BadJob, match=r"without a new batch"):
        make_run().worker().commit()

    def never_commits(worker: Worker) -> None:
        for _ in worker.loader():
            pass

    with pytest.raises(BadJob, match=r"epoch 0 ended without a commit"):
        make_run().worker().run(never_commits)

    def tracks_late(worker: Worker) -> None:
        for _ in worker.loader():
            worker.track(late=nn.Linear(1, 1))

    with pytest.raises(BadJob, match=r"Call it between setup"):
        make_run().worker().run(tracks_late)

    def sets_up_twice(worker: Worker) -> None:
        for _ in range(2):
            worker.setup(nn.Linear(1, 1), torch.optim.Adam)

    with pytest.raises(BadJob, match=r"called 'model'.* is called once"):
        make_run().worker().run(sets_up_twice)

    def commits_a_vector(worker: Worker) -> None:
        for _ in worker.loader():
            worker.commit(loss=torch.zeros(3))

    with pytest.raises(InvalidOption, match=r"'loss' has shape \(3,\).*loss.mean\(\)"):
        make_run().worker().run(commits_a_vector)


def test_an_exception_in_the_loop_leaves_no_thread(make_run: Callable[..., WorkerRun]) -> None:
    before = set(threading.enumerate())
    kept: list[Any] = []

    def train(worker: Worker) -> None:
        batches = worker.loader()
        kept.append(batches)
        next(batches)
        raise Killed

    with pytest.raises(Killed):
        make_run().worker().run(train)
    deadline = time.monotonic() + PATIENCE_S
    while left := [thread.name for thread in threading.enumerate() if thread not in before]:
        # Closing does not wait for a running read: its thread ends with it.
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.01)


def test_commits_of_another_plan_or_model_are_refused(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run()
    run.train(die_at=4)
    data = run.train_spec.data
    plan = build_plan(data.plan.manifest, seed=8, lanes=4, shuffle_rows=16)
    with pytest.raises(CursorMismatch, match=r"step 4 was made with plan .*seed=8.*new name"):
        make_run(data=replace(data, plan=plan)).train()

    def train_another(worker: Worker) -> None:
        worker.setup(nn.Linear(3, 1), partial(torch.optim.Adam, lr=0.1))

    with pytest.raises(BadJob, match=r"(?s)step 4 does not fit the model .*new name"):
        make_run().worker().run(train_another)

    def track_more(worker: Worker) -> None:
        worker.setup(WorkerModel(), partial(torch.optim.Adam, lr=0.05))
        worker.track(scaler=torch.amp.GradScaler("cpu"))

    with pytest.raises(BadJob, match=r"not of 'scaler'"):
        make_run().worker().run(track_more)


def test_another_global_batch_continues_at_the_position(make_run: Callable[..., WorkerRun]) -> None:
    run = make_run(epochs=1)
    run.train(die_at=2)
    larger = make_run(epochs=1, data=replace(run.train_spec.data, global_batch=16))
    larger.seen = run.seen
    larger.train()
    assert sorted(row for batch in larger.seen for row in batch) == list(range(NUM_ROWS))


def test_held_out_data_is_read_once_through(make_run: Callable[..., WorkerRun], make_data: Callable[..., Data]) -> None:
    assert make_run().worker().held_out() is None
    held_out = make_data(rows=(5, 9, 3, 1), folder="held_out")
    run, seen = make_run(epochs=2, held_out=held_out), []

    def train(worker: Worker) -> None:
        for batch in worker.loader():
            if batch.ends_epoch:
                seen.append(sorted(row for part in worker.held_out() for row in part["id"].tolist()))
                next(worker.held_out())  # left early, so it must not keep a thread
            worker.commit()

    run.worker().run(train)
    assert seen == [list(range(18))] * 2
    for event in run.recorder.of(EpochEnded):
        assert event.eval_s > 0
        assert event.rows == event.counters["rows"] == NUM_ROWS  # held-out rows are not trained on


def test_dropped_rows_are_told(make_run: Callable[..., WorkerRun], make_data: Callable[..., Data]) -> None:
    run = make_run(epochs=1, data=make_data(last="drop"))
    run.train()
    (ended,) = run.recorder.of(EpochEnded)
    assert (ended.step, ended.rows, ended.dropped_rows) == (5, 40, 3)


def test_more_ranks_than_lanes(make_run: Callable[..., WorkerRun]) -> None:
    class Crowd(SingleProcessCollective):
        def __init__(self) -> None:
            super().__init__()
            self.world = World(rank=0, size=5)

    run = make_run()
    with pytest.raises(TooManyRanks):
        Worker(run.train_spec, Crowd(), None, DirectoryStore(run.folder), run.recorder)
