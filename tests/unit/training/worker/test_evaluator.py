"""Evaluations during training: when they come, the best of them, and the end they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.errors import BadJob
from forebay.events import EpochEnded, Evaluated, Reported, Sample
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.state.evaluations import KeepBest, best_of
from forebay.training.state.metric import Evaluation, WeightedMean
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

STEPS = 12
"""Of two epochs of 43 rows."""


class RunKilled(Exception):
    """End of all processes of a run at a step."""


def mean_error(worker: Worker, model: nn.Module, drawn: list[float]) -> Evaluation:
    """Held-out error, with a draw that must not change training."""
    drawn.append(float(torch.rand(())) + float(np.random.rand()))
    sums = np.zeros(2)
    model.eval()
    with torch.no_grad():
        for batch in worker.held_out() or ():
            error = (model(batch["x"])[:, 0] - batch["label"]).double().square()
            if batch.weight > 0:
                sums += [float(error.sum()), len(error)]
    model.train()
    total, rows = worker.all_reduce(sums)
    return Evaluation(
        metrics={"validation_loss": total / rows, "rows": WeightedMean(total=float(sums[1]), weight=1.0)},
        samples=[Sample(prompt="prompt", text=f"after {worker.step}")],
    )


def train(worker: Worker, die_at: int, seen: dict[str, Any]) -> None:
    """Train, with `has_noise` on random numbers. Dies before the commit of step `die_at`."""
    model, optimizer = worker.setup(nn.Sequential(nn.Linear(3, 1)), partial(torch.optim.SGD, lr=0.05))
    if seen.get("evaluates", True):
        worker.evaluate_with(partial(mean_error, worker, model, seen.setdefault("drawn", [])))
    seen["model"] = model
    for batch in worker.loader():
        noise = torch.rand(()).item() if seen.get("has_noise", False) else 0.0

        def loss_of(part: Any, noise: float = noise) -> torch.Tensor:
            return (model(part["x"])[:, 0] - part["label"] - 0.1 * noise).square().mean()

        loss = worker.backward(batch, loss_of)
        optimizer.step()
        optimizer.zero_grad()
        if worker.step + 1 == die_at:
            raise RunKilled
        worker.commit(loss=loss)


def run_as(
    collective: Collective, spec: TrainSpec, folder: str, make_recorder: Any, die_at: int, **seen: Any
) -> tuple[list[Any], str | None, int, list[torch.Tensor], dict[str, Any]]:
    """Events of rank 0, the reason of an end, the last step and the weights."""
    recorder = make_recorder()
    worker = Worker(spec, collective, None, DirectoryStore(folder), recorder)
    try:
        worker.run(partial(train, die_at=die_at, seen=seen))
    except RunKilled:
        return recorder.events, "killed", worker.step, [], seen
    weights = [each.detach().clone() for each in seen.pop("model").parameters()]
    return recorder.events, worker.stopped, worker.step, weights, seen


MakeSpec = Callable[..., TrainSpec]


@pytest.fixture
def make_spec(make_data: Callable[..., Data]) -> MakeSpec:
    data = make_data()
    held_out = replace(make_data(rows=(7, 4, 3, 2), folder="held_out"))

    def make(**options: Any) -> TrainSpec:
        defaults = {"data": data, "held_out": held_out, "epochs": 2, "seed": 5, "checkpoint_every": 4}
        return TrainSpec(**(defaults | options))

    return make


@pytest.fixture
def alone(tmp_path: Path, make_recorder: Any) -> Callable[..., Any]:
    """`alone(spec, name, die_at=0)` of one rank."""

    def run(spec: TrainSpec, name: str = "run", die_at: int = 0, **seen: Any) -> Any:
        return run_as(SingleProcessCollective(), spec, str(tmp_path / name), make_recorder, die_at, **seen)

    return run


def evaluations_of(events: list[Any]) -> list[Evaluated]:
    """Evaluations as the record of a run keeps them: a later report replaces those from its step on."""
    kept: dict[int, Evaluated] = {}
    for event in events:
        if isinstance(event, Evaluated):
            kept = {step: each for step, each in kept.items() if step < event.step} | {event.step: event}
    return list(kept.values())


def bare(evaluations: list[Evaluated]) -> list[Evaluated]:
    return [replace(each, samples=(), metrics={}) for each in evaluations]


def losses(evaluations: list[Evaluated]) -> list[float]:
    return [each.metrics["validation_loss"] for each in evaluations]


def test_evaluations_come_before_the_first_step_every_n_steps_and_at_the_ends(
    make_spec: MakeSpec, alone: Callable[..., Any], tmp_path: Path
) -> None:
    events, stopped, steps, _, _ = alone(make_spec(eval_every=5))
    found = evaluations_of(events)
    assert (stopped, steps) == (None, STEPS)
    assert [(each.step, each.epoch, each.ends_epoch) for each in found] == [
        (0, 0, False),
        (5, 0, False),
        (6, 0, True),
        (10, 1, False),
        (12, 1, True),
    ]
    assert (found[0].rows, found[2].rows, found[4].rows) == (0, 43, 86)
    reported = {event.step: event.metrics for event in events if isinstance(event, Reported)}
    assert all(reported[each.step]["validation_loss"] == each.metrics["validation_loss"] for each in found)
    ended = [event for event in events if isinstance(event, EpochEnded)]
    assert [each.metrics["validation_loss"] for each in ended] == [losses(found)[2], losses(found)[4]], (
        "an epoch has its last evaluation, not a mean over evaluations"
    )
    assert [each.samples[0].text for each in found] == [f"after {step}" for step in (0, 4, 5, 9, 11)]
    assert max(each.name for each in (tmp_path / "run").iterdir()).endswith("12")


def test_evaluations_change_nothing_in_training(make_spec: MakeSpec, alone: Callable[..., Any]) -> None:
    *_, weights, _ = alone(make_spec(), "without", evaluates=False, has_noise=True)
    *_, same, seen = alone(make_spec(eval_every=1), "with", has_noise=True)
    assert len(seen["drawn"]) == STEPS + 1
    assert all(map(torch.equal, weights, same))


def test_killed_anywhere_and_resumed_in_other_worlds_evaluations_and_end_are_the_same(
    make_spec: MakeSpec, alone: Callable[..., Any], ranks: Any, tmp_path: Path, make_recorder: Any
) -> None:
    rule = KeepBest(patience=2, least_change=0.02)
    spec = make_spec(eval_every=2, keep_best=rule, reduction="exact", epochs=3)
    events, stopped, steps, weights, _ = alone(spec)
    expected = evaluations_of(events)
    assert stopped is not None
    assert stopped.startswith("validation_loss was not better in 2 evaluations since step ")
    assert 4 < steps < 18
    best = best_of(expected)
    assert best is not None
    for die_at, world in ((1, 2), (4, 3), (5, 2), (steps, 3)):
        name = f"killed-{die_at}"
        before, reason, *_ = alone(spec, name, die_at=die_at)
        assert reason == "killed"
        answers = ranks(world, run_as, spec, str(tmp_path / name), make_recorder, 0)
        after, stopped_again, steps_again, same, _ = answers[0]
        found = evaluations_of([*before, *after])
        assert (stopped_again, steps_again, bare(found)) == (stopped, steps, bare(expected))
        assert losses(found) == pytest.approx(losses(expected), rel=1e-6)
        assert all(map(torch.equal, weights, same))
        assert {answer[1] for answer in answers} == {stopped}, "all ranks end"
        kept = DirectoryStore(tmp_path / name)._files.complete_steps()
        assert best.step in kept, f"the best checkpoint, of step {best.step}, is not among {kept}"


def test_run_that_ended_early_ends_again_at_once(make_spec: MakeSpec, alone: Callable[..., Any]) -> None:
    for options in ({"max_steps": 5}, {"eval_every": 1, "keep_best": KeepBest(mode="max", patience=1)}):
        spec = make_spec(**options)
        name = "-".join(options)
        _, stopped, steps, weights, _ = alone(spec, name)
        _, again, same_step, same, _ = alone(spec, name)
        assert (again, same_step) == (stopped, steps)
        assert stopped
        assert all(map(torch.equal, weights, same))


def test_last_step_is_evaluated_saved_and_the_end_of_the_schedule(
    make_spec: MakeSpec, alone: Callable[..., Any]
) -> None:
    spec = make_spec(max_steps=5)
    events, stopped, steps, _, _ = alone(spec)
    assert (stopped, steps) == ("max_steps=5", 5)
    assert [each.step for each in evaluations_of(events)] == [5]
    events, stopped, steps, _, _ = alone(replace(spec, max_steps=9))
    assert (stopped, steps) == ("max_steps=9", 9)
    assert next(event.step for event in events if isinstance(event, Reported)) == 6, "it continues"
    _, stopped, steps, _, _ = alone(replace(spec, max_steps=STEPS))
    assert (stopped, steps) == (None, STEPS), "a run that trains all epochs is finished, and not stopped"


def test_progress_is_of_max_steps_if_epochs_have_more(make_spec: MakeSpec, tmp_path: Path, make_recorder: Any) -> None:
    shares = []

    def run(worker: Worker) -> None:
        for _ in worker.loader():
            shares.append(worker.progress)
            worker.commit(loss=1.0)

    for number, last in enumerate((4, 100)):
        spec = make_spec(max_steps=last)
        store = DirectoryStore(tmp_path / str(number))
        Worker(spec, SingleProcessCollective(), None, store, make_recorder()).run(run)
    assert shares[:4] == [0, 0.25, 0.5, 0.75]
    assert shares[4:][6] == pytest.approx(0.5)


def test_best_checkpoint_is_kept(make_spec: MakeSpec, alone: Callable[..., Any], tmp_path: Path) -> None:
    events, *_ = alone(make_spec(eval_every=1, keep_best=KeepBest("validation_loss", mode="max")))
    found = evaluations_of(events)
    best = max(found, key=lambda each: each.metrics["validation_loss"])
    assert best.step < STEPS - 2
    assert [each.step for each in found if each.is_best][-1] == best.step
    assert DirectoryStore(tmp_path / "run")._files.complete_steps() == [STEPS, STEPS - 1, best.step]


@pytest.mark.parametrize("options", [{"eval_every": 2}, {"keep_best": KeepBest()}], ids=["eval_every", "keep_best"])
def test_job_whose_train_function_cannot_be_evaluated_is_refused(
    make_spec: MakeSpec, alone: Callable[..., Any], options: Mapping[str, Any]
) -> None:
    with pytest.raises(BadJob, match=rf"{next(iter(options))}=.*worker.evaluate_with"):
        alone(make_spec(**options), evaluates=False)


def test_metric_that_no_evaluation_has_is_refused(make_spec: MakeSpec, alone: Callable[..., Any]) -> None:
    with pytest.raises(BadJob, match="keep_best watches the metric 'auc'.*'validation_loss', 'rows'"):
        alone(make_spec(eval_every=2, keep_best=KeepBest("auc")))


@pytest.mark.parametrize(
    ("evaluated", "says"),
    [
        ({"loss": 5.0}, "both have a metric 'loss', .* such as 'validation_loss'"),
        (None, "the evaluation returned None. Return metrics by name"),
    ],
)
def test_an_evaluation_hides_no_metric_of_training(
    make_spec: MakeSpec, make_recorder: Any, tmp_path: Path, evaluated: Any, says: str
) -> None:
    def commit_only(worker: Worker) -> None:
        worker.setup(nn.Linear(3, 1), partial(torch.optim.SGD, lr=0.05))
        worker.evaluate_with(lambda: evaluated)
        for _ in worker.loader():
            worker.commit(loss=1.0)

    worker = Worker(make_spec(), SingleProcessCollective(), None, DirectoryStore(tmp_path), make_recorder())
    with pytest.raises(BadJob, match=says):
        worker.run(commit_only)


def test_metrics_of_ranks_are_combined(make_spec: MakeSpec, ranks: Any, tmp_path: Path, make_recorder: Any) -> None:
    answers = ranks(3, run_as, make_spec(eval_every=5, max_steps=2), str(tmp_path / "run"), make_recorder, 0)
    found = evaluations_of(answers[0][0])
    assert [each.step for each in found] == [0, 2]
    assert [each.metrics["rows"] for each in found] == pytest.approx([16 / 3, 16 / 3])
