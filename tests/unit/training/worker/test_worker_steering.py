"""Influences on a run from outside and inside: requests, batch policies, rates, monitors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.errors import Diverged
from forebay.events import EpochEnded, Reported, Request, RolledBack, Warned
from forebay.training.batch_size.lr_scaling import LinearScaling
from forebay.training.batch_size.policy import TrainPosition
from forebay.training.batch_size.schedule import BatchSchedule
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.state.setup import TrainSetup
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

NUM_ROWS = 43
Recorder = Any
MakeRun = Callable[..., "SteeredRun"]


@dataclass(frozen=True)
class Objection:
    """A monitor that objects to steps whose first row is one of `rows` (1000 * epoch + id), at most `times` times."""

    rows: frozenset[int]
    action: Action
    times: int = 1000

    def attach(self, setup: TrainSetup) -> LiveSteeringObjection:
        assert not isinstance(setup.model, nn.parallel.DistributedDataParallel)
        return LiveSteeringObjection(self)


class LiveSteeringObjection:
    def __init__(self, objection: Objection) -> None:
        self.objection, self.left = objection, objection.times
        self.bad: list[int] = []
        self.num_seen = 0

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.num_seen += 1
        if metrics["row"] in self.objection.rows and self.left:
            self.bad.append(step)

    def verdict(self) -> Verdict:
        if not self.bad:
            return Verdict()
        self.left -= 1
        step, self.bad = self.bad[0], []
        return Verdict(action=self.objection.action, reason="Objection: a bad row", step=step)

    def metrics(self) -> dict[str, float]:
        return {"objection_seen": float(self.num_seen)}

    def state_dict(self) -> dict[str, Any]:
        return {"num_seen": self.num_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_seen = state["num_seen"]
        self.bad = []


class SteeredRun:
    """One train function, on the same checkpoints again and again. `weights` are those after the newest checkpoint."""

    def __init__(self, train_spec: TrainSpec, folder: Path, recorder: Recorder) -> None:
        self.train_spec, self.folder, self.recorder = train_spec, folder, recorder
        self.batches: list[list[int]] = []
        self.rates: list[float] = []
        self.weights: list[torch.Tensor] = []

    def train(self, *, steps: int = 1000) -> Worker:
        worker = Worker(self.train_spec, SingleProcessCollective(), None, DirectoryStore(self.folder), self.recorder)
        worker.run(partial(self._train, steps=steps))
        return worker

    def _train(self, worker: Worker, steps: int) -> None:
        model, optimizer = worker.setup(nn.Linear(3, 1), partial(torch.optim.SGD, lr=0.01))
        optimizer.register_step_pre_hook(lambda *_: self.rates.append(optimizer.param_groups[0]["lr"]))
        for batch in worker.loader():
            del self.batches[worker.step :], self.rates[worker.step :]
            if worker.step == steps:
                break
            ids = batch["id"].tolist()
            self.batches.append(ids)
            loss = worker.backward(batch, lambda part: (model(part["x"])[:, 0] - part["label"]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            assert optimizer.param_groups[0]["lr"] == 0.01, "the scaled rate is seen from outside"
            worker.commit(loss=loss, row=1000 * batch.epoch + ids[0])
        # The last rejected batch has no successor.
        del self.batches[worker.step :], self.rates[worker.step :]
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]

    def rows(self, first_step: int = 0, last_step: int | None = None) -> list[int]:
        return sorted(row for batch in self.batches[first_step:last_step] for row in batch)


@pytest.fixture
def make_run(make_data: Callable[..., Data], tmp_path: Path, make_recorder: type) -> MakeRun:
    shared = make_data()

    def make(name: str = "run", *, data: Data = shared, **options: Any) -> SteeredRun:
        recorder = make_recorder(options.pop("stop_at", None), options.pop("request", None))
        defaults = {"data": data, "epochs": 2, "seed": 5, "checkpoint_every": 2}
        return SteeredRun(TrainSpec(**(defaults | options)), tmp_path / name, recorder)

    return make


def at_commit(number: int, **facts: Any) -> Callable[[int], Request]:
    """Request that is sent from the saved commit `number` on."""
    return lambda question: Request(**facts) if question >= number else Request()


def test_ordered_to_another_size_a_worker_parts_at_the_saved_commit(make_run: MakeRun) -> None:
    run = make_run(request=at_commit(2, target=3))
    worker = run.train()
    assert (worker.resize_to, worker.stopped, worker.is_finished, worker.step) == (3, None, False, 4)
    assert run.recorder.of(Reported)[-1].step == 4, "the last step before a resize is always told"
    again = make_run(request=lambda _question: Request(target=1).for_world(1))
    again.batches = run.batches
    worker = again.train()
    assert (worker.resize_to, worker.is_finished) == (None, True)
    assert again.rows(0, 6) == again.rows(6) == list(range(NUM_ROWS))


def test_orders_to_stop_go_before_a_resize_and_the_end_goes_before_both(make_run: MakeRun) -> None:
    worker = make_run("a", request=at_commit(1, target=3, stop="enough")).train()
    assert (worker.stopped, worker.resize_to) == ("enough", None)
    worker = make_run("b", epochs=1, checkpoint_every=100, request=at_commit(1, target=3, stop="enough")).train()
    assert (worker.stopped, worker.resize_to, worker.is_finished) == (None, None, True)


def test_world_of_the_same_size_elsewhere_is_a_parting_too(make_run: MakeRun) -> None:
    worker = make_run(request=at_commit(1, target=1)).train()
    assert (worker.resize_to, worker.step) == (1, 2)


def test_ordered_batch_is_in_use_from_the_next_step_on_and_after_a_resume(make_run: MakeRun) -> None:
    request = at_commit(1, global_batch=16)
    run = make_run(request=request)
    worker = run.train()
    assert run.sizes == [8, 7, 14, 14, 15, 14, 14]
    assert run.rows(0, 4) == run.rows(4) == list(range(NUM_ROWS))
    assert worker.global_batch == 16
    assert [event.global_batch for event in run.recorder.of(Reported)][-1] == 16
    resumed = make_run("resumed", request=request)
    resumed.train(steps=5)
    resumed.recorder.questions = -1000
    resumed.train()
    assert resumed.batches == run.batches, "the batch in use was not kept with the commit"
    assert all(map(torch.equal, resumed.weights, run.weights))


def test_what_is_asked_at_the_end_of_an_epoch_takes_effect_there(make_run: MakeRun) -> None:
    run = make_run(checkpoint_every=100, request=at_commit(1, global_batch=32))
    run.train()
    assert run.sizes == [8, 7, 7, 7, 7, 7, 22, 21]


def test_orders_go_before_the_policy(make_run: MakeRun) -> None:
    policy = BatchSchedule({1: 22})
    run = make_run("policy", checkpoint_every=100, batch=policy)
    run.train()
    assert run.sizes == [8, 7, 7, 7, 7, 7, 22, 21]
    ordered = make_run("ordered", checkpoint_every=100, batch=policy, request=at_commit(1, global_batch=43))
    ordered.train()
    assert ordered.sizes == [8, 7, 7, 7, 7, 7, 43]


def test_batch_that_fits_no_more_into_an_epoch_waits_for_the_next(
    make_run: MakeRun, make_data: Callable[..., Data]
) -> None:
    run = make_run(data=make_data(last="drop"), request=at_commit(2, global_batch=12))
    run.train()
    assert run.sizes == [8, 8, 8, 8, 8, 12, 12, 12]
    assert [event.dropped_rows for event in run.recorder.of(EpochEnded)] == [3, 7]


@dataclass(frozen=True)
class DecidedOnce:
    """Batch policy that decides in one step, and is its own live part."""

    at_step: int
    rows: int

    def validate(self, reduction: str, data: Data) -> None: ...

    def attach(self, setup: TrainSetup) -> DecidedOnce:
        return self

    def step(self, *, rows: int, size: int) -> None: ...

    def measured(self) -> tuple[float, ...]:
        return ()

    def global_batch(self, place: TrainPosition, measured: Sequence[tuple[float, ...]]) -> int:
        return self.rows if place.step == self.at_step else place.global_batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("stops", [[], [4], [5]])
def test_batch_that_was_decided_once_waits_for_the_next_epoch_too(
    make_run: MakeRun, make_data: Callable[..., Data], stops: list[int]
) -> None:
    run = make_run(data=make_data(last="drop"), checkpoint_every=1, batch=DecidedOnce(at_step=4, rows=12))
    for steps in (*stops, 1000):
        run.train(steps=steps)
    assert run.sizes == [8, 8, 8, 8, 8, 12, 12, 12]


def test_batch_without_a_row_for_every_lane(make_run: MakeRun) -> None:
    run = make_run(request=at_commit(1, global_batch=3))
    run.train()
    assert run.sizes[0] == 8
    assert set(run.sizes[-5:]) <= {2, 3}


def test_rate_follows_the_batch_within_steps_only_and_after_a_resume(make_run: MakeRun) -> None:
    options = {"rate": LinearScaling(warmup_steps=2), "batch": BatchSchedule({1: 16}), "checkpoint_every": 1}
    run = make_run(**options)
    run.train()
    assert run.rates == pytest.approx([0.01] * 6 + [0.01, 0.015, 0.02])
    resumed = make_run("resumed", **options)
    for steps in (7, 8, 1000):
        resumed.train(steps=steps)
    assert resumed.rates == run.rates
    assert all(map(torch.equal, resumed.weights, run.weights))


def test_job_with_another_batch_goes_on_with_its_own(make_run: MakeRun) -> None:
    run = make_run(request=at_commit(1, global_batch=16))
    run.train(steps=4)
    other = make_run(data=replace(run.train_spec.data, global_batch=22))
    other.batches = run.batches
    other.train()
    assert other.sizes[4:] == [22, 21]


@pytest.mark.parametrize("step", [0, 1, 2, 5, 6, 11])
@pytest.mark.parametrize("checkpoint_every", [1, 2, 100])
def test_skipped_batch_leaves_no_trace_and_every_other_row_is_trained_once(
    make_run: MakeRun, step: int, checkpoint_every: int
) -> None:
    """The first batch of a run, the last of an epoch, the last of all, and some between."""
    whole = make_run("whole")
    whole.train()
    bad = whole.batches[step]
    objection = Objection(frozenset([1000 * (step // 6) + bad[0]]), Action.SKIP, times=1)
    run = make_run("skipping", checkpoint_every=checkpoint_every, monitors=(objection,))
    worker = run.train()
    assert worker.is_finished
    (back,) = run.recorder.of(RolledBack)
    assert (back.from_step, back.skipped_rows) == (step + 1, len(bad))
    assert back.to_step <= step
    assert run.batches == [batch for number, batch in enumerate(whole.batches) if number != step]
    ended = {event.epoch: event.rows for event in run.recorder.of(EpochEnded)}
    assert ended == {epoch: NUM_ROWS - (len(bad) if step // 6 == epoch else 0) for epoch in (0, 1)}


def test_skipped_batch_stays_skipped_after_a_resume(make_run: MakeRun) -> None:
    whole = make_run("whole", checkpoint_every=100)
    whole.train()
    objection = Objection(frozenset([whole.batches[3][0]]), Action.SKIP)
    run = make_run(checkpoint_every=2, epochs=1, monitors=(objection,))
    run.train(steps=4)
    # Steps 1 and 2 were saved. Step 3 and the bad one were rejected. Then 3 and its successor were saved.
    assert run.recorder.of(RolledBack)[0].to_step == 2
    again = make_run(checkpoint_every=2, epochs=1)
    again.batches = run.batches
    again.train()
    assert again.batches == [batch for number, batch in enumerate(whole.batches[:6]) if number != 3]


def test_last_batch_that_is_left_ends_the_epoch(make_run: MakeRun) -> None:
    """Evaluation is due where `ends_epoch` says so, also when the batches after it are skipped."""
    whole = make_run("whole", epochs=1)
    whole.train()
    run, ends = make_run(checkpoint_every=3, monitors=(Objection(frozenset([whole.batches[5][0]]), Action.SKIP),)), []

    def train(worker: Worker) -> None:
        worker.setup(nn.Linear(3, 1), partial(torch.optim.SGD, lr=0.01))
        for batch in worker.loader():
            ends.append((worker.epoch, worker.step, batch.ends_epoch))
            worker.commit(row=batch["id"][0].item())

    run.train_spec = replace(run.train_spec, epochs=1)
    Worker(run.train_spec, SingleProcessCollective(), None, DirectoryStore(run.folder), run.recorder).run(train)
    assert ends[-2:] == [(0, 3, False), (0, 4, True)]
    (ended,) = run.recorder.of(EpochEnded)
    assert ended.step == 5


def test_rolled_back_steps_are_trained_again_as_they_were(make_run: MakeRun) -> None:
    whole = make_run("whole", epochs=1)
    whole.train()
    objection = Objection(frozenset([whole.batches[4][0]]), Action.ROLL_BACK, times=2)
    run = make_run(epochs=1, monitors=(objection,))
    assert run.train().is_finished
    assert [(event.from_step, event.to_step, event.skipped_rows) for event in run.recorder.of(RolledBack)] == [
        (5, 4, 0),
        (5, 4, 0),
    ]
    assert run.batches == whole.batches
    assert all(map(torch.equal, run.weights, whole.weights))
    assert run.recorder.of(EpochEnded)[0].rows == NUM_ROWS


def test_run_that_keeps_being_rejected_has_diverged(make_run: MakeRun) -> None:
    whole = make_run("whole", epochs=1)
    whole.train()
    run = make_run(epochs=1, monitors=(Objection(frozenset([whole.batches[4][0]]), Action.ROLL_BACK),))
    with pytest.raises(Diverged, match=r"step 4 was rejected 4 times, the last time at step 5: Objection: a bad row"):
        run.train()
    assert DirectoryStore(run.folder).newest().step == 4  # type: ignore[union-attr]


def test_steps_that_a_monitor_rejects_were_reported(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.training.worker.step_reporter.REPORT_EVERY_S", 1e6)
    whole = make_run("whole", epochs=1)
    whole.train()
    run = make_run(epochs=1, monitors=(Objection(frozenset([whole.batches[4][0]]), Action.FAIL),))
    with pytest.raises(Diverged):
        run.train()
    assert [event.step for event in run.recorder.of(Reported)] == [1, 2, 3, 4, 5]


def test_monitor_stops_a_run_before_it_is_saved(make_run: MakeRun) -> None:
    whole = make_run("whole", epochs=1)
    whole.train()
    run = make_run(epochs=1, monitors=(Objection(frozenset([whole.batches[5][0]]), Action.STOP),))
    worker = run.train()
    assert (worker.stopped, worker.is_finished) == ("Objection: a bad row", False)
    assert not run.recorder.of(EpochEnded)
    assert DirectoryStore(run.folder).newest().step == 4  # type: ignore[union-attr]


def test_warning_is_told_and_training_goes_on(make_run: MakeRun) -> None:
    whole = make_run("whole", epochs=1)
    whole.train()
    run = make_run(epochs=1, monitors=(Objection(frozenset([whole.batches[2][0]]), Action.WARN, times=1),))
    assert run.train().is_finished
    assert run.recorder.of(Warned) == [Warned(reason="Objection: a bad row", step=3)]
    assert all(map(torch.equal, run.weights, whole.weights))


def test_state_and_metrics_of_monitors_are_kept(make_run: MakeRun) -> None:
    quiet = Objection(frozenset(), Action.STOP)
    run = make_run(epochs=1, checkpoint_every=3, monitors=(quiet, quiet))
    run.train(steps=4)
    run.train()
    (ended,) = run.recorder.of(EpochEnded)
    assert ended.metrics["objection_seen"] == (3 + 6) / 2, "seen at steps 3 and 6, with what was seen before the resume"
