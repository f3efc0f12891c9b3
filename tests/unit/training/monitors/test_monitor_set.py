"""Monitors as one: all ranks follow the most severe verdict of all monitors and all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.errors import Diverged
from forebay.events import RolledBack
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import Collective
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.monitors.monitor_set import MOST_ROLL_BACKS, MonitorSet, gravest
from forebay.training.state.setup import TrainSetup
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

TRAINING = TrainSetup(
    model=nn.Linear(1, 1), optimizer=torch.optim.SGD([torch.zeros(1)]), device=torch.device("cpu"), world_size=1
)


def verdict(action: Action, step: int | None = None) -> Verdict:
    return Verdict(action=action, reason=f"{action.name} {step}", step=step)


@pytest.mark.parametrize(
    ("verdicts", "obeyed"),
    [
        ([], Verdict()),
        ([Verdict(), verdict(Action.WARN, 3), Verdict()], verdict(Action.WARN, 3)),
        ([verdict(Action.SKIP, 1), verdict(Action.STOP, 9)], verdict(Action.STOP, 9)),
        ([verdict(Action.SKIP, 1), verdict(Action.ROLL_BACK)], verdict(Action.ROLL_BACK)),
        ([verdict(Action.SKIP), verdict(Action.SKIP, 7), verdict(Action.SKIP, 4)], verdict(Action.SKIP, 4)),
    ],
)
def test_the_gravest_counts_and_among_equals_the_earliest(verdicts: list[Verdict], obeyed: Verdict) -> None:
    assert gravest(verdicts) == obeyed


@dataclass(frozen=True)
class Remembering:
    """Adds up its inputs."""

    name: str = "seen"

    def attach(self, setup: TrainSetup) -> LiveRemembering:
        return LiveRemembering(self.name)


class LiveRemembering:
    def __init__(self, name: str) -> None:
        self.name, self.total = name, 0.0

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.total += metrics["loss"]

    def verdict(self) -> Verdict:
        return Verdict()

    def metrics(self) -> dict[str, float]:
        return {self.name: self.total}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def watching(*names: str) -> MonitorSet:
    watching = MonitorSet([Remembering(name) for name in names])
    watching.attach(TRAINING)
    return watching


def test_two_monitors_of_one_class_keep_their_own_states_and_a_new_one_begins_anew() -> None:
    first = watching("a", "b")
    first.step(1, {"loss": 2.0})
    state = first.state()
    state["Remembering-1"]["total"] = 5.0
    second = watching("a", "b", "c")
    second.step(1, {"loss": 7.0})
    second.restore(state)
    assert second.metrics() == {"a": 2.0, "b": 5.0, "c": 0.0}


def test_without_monitors_there_is_nothing_to_see() -> None:
    nothing = MonitorSet([])
    nothing.attach(TRAINING)
    assert (nothing.may_go_back, nothing.verdict(), nothing.metrics(), nothing.state()) == (False, Verdict(), {}, {})


def test_going_back_to_another_commit_is_a_new_start() -> None:
    watched = watching("a")
    for to_step in (4, 4, 4, 6, 6, 6):
        watched.count_roll_back(verdict(Action.SKIP, to_step + 1), to_step=to_step)
    with pytest.raises(Diverged, match=f"step 6 was rejected {MOST_ROLL_BACKS + 1} times.*SKIP 7") as end:
        watched.count_roll_back(verdict(Action.SKIP, 7), to_step=6)
    assert (end.value.step, end.value.to_step) == (7, 6)


@dataclass(frozen=True)
class OneRankObjects:
    """Rank 1 objects once to the batch of step 3."""

    def attach(self, setup: TrainSetup) -> LiveObjection:
        assert setup.world_size == 2
        return LiveObjection(torch.distributed.get_rank())


class LiveObjection:
    def __init__(self, rank: int) -> None:
        self.rank, self.bad, self.done = rank, False, False

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.bad |= step == 3 and self.rank == 1 and not self.done

    def verdict(self) -> Verdict:
        if not self.bad:
            return Verdict()
        self.bad, self.done = False, True
        return Verdict(action=Action.SKIP, reason="not this one", step=3)

    def metrics(self) -> dict[str, float]:
        return {"rank": float(self.rank)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def train(collective: Collective, data: Data, folder: Path, recorder: Any) -> tuple[list[list[int]], list[Any], float]:
    batches: list[list[int]] = []
    train_spec = TrainSpec(data=data, checkpoint_every=2, monitors=(OneRankObjects(),))
    worker = Worker(train_spec, collective, None, DirectoryStore(folder), recorder)

    def loop(worker: Worker) -> None:
        model, optimizer = worker.setup(nn.Linear(3, 1), partial(torch.optim.SGD, lr=0.1))
        for batch in worker.loader():
            del batches[worker.step :]
            batches.append(batch["id"].tolist())
            worker.backward(batch, lambda part: model(part["x"]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            worker.commit()

    worker.run(loop)
    total = float(sum(parameter.sum() for parameter in worker._state.objects.state()["model"].values()))  # type: ignore[misc]
    return batches, recorder.of(RolledBack), total


def test_what_one_rank_objects_to_is_skipped_by_all(
    ranks: Callable[..., list[Any]], make_data: Callable[..., Data], make_recorder: type, tmp_path: Path
) -> None:
    data = make_data()
    (first, told, total), (second, untold, same) = ranks(2, train, data, tmp_path / "run", make_recorder())
    assert [(event.from_step, event.to_step, event.skipped_rows) for event in told] == [(3, 2, 7)]
    assert not untold, "only rank 0 tells"
    assert (len(first), len(second), total) == (5, 5, same)
    rows = sorted(row for batch in (*first, *second) for row in batch)
    assert len(rows) == len(set(rows)) == 43 - 7
