"""Bit-equal losses and models in worlds of 1, 2, 3 and 4, with one thread per rank."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.loader.loader import Loader
from forebay.errors import BadJob
from forebay.events import EpochEnded
from forebay.training.batch_size.lr_scaling import LinearScaling
from forebay.training.batch_size.schedule import BatchSchedule
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.exact import ExactReduction, LaneNode, LaneTree, nodes_of
from forebay.training.collectives.tensor_collectives import (
    SingleProcessTensorCollectives,
    TensorCollectives,
    TorchTensorCollectives,
)
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker
from forebay.world import World

Ranks = Callable[..., list[Any]]


def tensors_of(collective: Collective) -> TensorCollectives:
    return TorchTensorCollectives() if collective.world.size > 1 else SingleProcessTensorCollectives()


class Mlp(nn.Module):
    """Model with dropout, an embedding, and a layer that some batches do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 8)
        self.first = nn.Linear(11, 64)
        self.rare, self.never = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.last = nn.Linear(64, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        known = self.table(batch["id"] % 32)
        hidden = torch.relu(self.first(torch.cat([batch["x"], known], 1)))
        if batch["id"].min() % 3 == 0:
            hidden = self.rare(hidden)
        hidden = nn.functional.dropout(self.norm(hidden), 0.3, self.training) * (1 + np.random.rand() * random.random())
        return self.last(hidden).squeeze(1)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()
        )
        self.last = nn.Linear(16, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        grid = torch.linspace(-1, 1, 8)
        images = torch.sin(batch["x"][:, :, None, None] * grid[:, None] + grid)
        return self.last(self.layers(images).mean((2, 3))).squeeze(1)


def loss_of(model: nn.Module) -> Callable[[Batch], torch.Tensor]:
    return lambda part: nn.functional.binary_cross_entropy_with_logits(model(part), part["label"])


def train(collective: Collective, kind: type[nn.Module], data: Data, epochs: int = 2) -> dict[str, Any]:
    world = collective.world
    torch.manual_seed(world.rank)
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    torch.manual_seed(world.rank)
    random.seed(world.rank)
    rank_0 = [each.detach().clone() for each in model.parameters()]
    exact = ExactReduction(model, optimizer, data.plan, tensors_of(collective), seed=5)
    losses, seen, unused = [], [], []
    with Loader(data, world=world) as loader:
        for _ in range(epochs):
            for batch in loader:
                losses.append(exact.backward(batch, loss_of(model)).item())
                seen.append(batch.num_rows)
                unused.append([each.grad is None for each in model.parameters()])
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    parameters = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    moved = not any(torch.equal(one, other) for one, other in zip(rank_0, model.parameters(), strict=True))
    return {
        "losses": losses,
        "parameters": parameters.numpy().tobytes(),
        "seen": seen,
        "unused": unused,
        "moved": moved,
    }


@pytest.mark.parametrize(
    ("kind", "lanes", "rows", "global_batch"),
    [
        (Mlp, 4, (61, 1, 40, 9), 16),
        pytest.param(Mlp, 6, (61, 1, 40, 9), 23, marks=pytest.mark.variation),
        (Mlp, 7, (9, 1, 3, 5), 7),
        (Cnn, 16, (61, 1, 140, 9), 64),
    ],
)
def test_losses_and_models_are_bit_equal_in_every_world(
    ranks: Ranks, make_data: Callable[..., Data], kind: type[nn.Module], lanes: int, rows: Any, global_batch: int
) -> None:
    data = make_data(rows=rows, lanes=lanes, global_batch=global_batch)
    alone = ranks(1, train, kind, data)[0]
    assert len(set(alone["losses"])) == len(alone["losses"]) > 3
    assert alone["moved"] == (kind is Cnn), "a layer that is never used is not decayed either"
    for size in (2, 3, 4):
        for answer in ranks(size, train, kind, data):
            assert answer["losses"] == alone["losses"]
            assert answer["parameters"] == alone["parameters"]
            assert answer["unused"] == alone["unused"]
            assert answer["seen"] != alone["seen"]
    if kind is Mlp and lanes == 4:
        # The parameters of `rare`: some steps do not use them, and then they have no gradient in any world.
        assert {step[3] for step in alone["unused"]} == {False, True}


def train_until(
    collective: Collective, train_spec: TrainSpec, folder: Path, recorder: Any, die_at: int | None
) -> dict[str, Any]:
    losses: dict[int, float] = {}
    parameters: list[bytes] = []

    def job(worker: Worker) -> None:
        model, optimizer = worker.setup(Mlp(), partial(torch.optim.Adam, lr=0.02))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        worker.track(scheduler=scheduler)
        for batch in worker.loader():
            if worker.step == die_at:
                return
            loss = worker.backward(batch, loss_of(model))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses[worker.step] = loss.item()
            worker.commit(loss=loss)
        parameters.extend(each.detach().numpy().tobytes() for each in model.parameters())

    Worker(train_spec, collective, None, DirectoryStore(folder), recorder).run(job)
    return {"losses": losses, "parameters": parameters, "ended": recorder.of(EpochEnded)}


def test_a_run_whose_world_changes_is_that_of_one_worker_bit_for_bit(
    ranks: Ranks, make_data: Callable[..., Data], make_recorder: type, tmp_path: Path
) -> None:
    train_spec = TrainSpec(
        data=make_data(rows=(61, 1, 40, 9), lanes=8, global_batch=17),
        epochs=3,
        seed=5,
        checkpoint_every=3,
        reduction="exact",
        batch=BatchSchedule({1: 23}),
        rate=LinearScaling(warmup_steps=2),
    )
    alone = ranks(1, train_until, train_spec, tmp_path / "alone", make_recorder(), None)[0]
    losses: dict[int, float] = {}
    for size, die_at in ((2, 4), (4, 8), (3, 13), (1, None)):
        answers = ranks(size, train_until, train_spec, tmp_path / "changing", make_recorder(), die_at)
        assert all(answer["losses"] == answers[0]["losses"] for answer in answers)
        losses |= answers[0]["losses"]
    assert len(losses) == 7 + 5 + 5
    assert losses == alone["losses"]
    assert answers[0]["parameters"] == alone["parameters"] != []
    for one, other in zip(answers[0]["ended"], alone["ended"], strict=True):
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=1e-15)


def test_the_gradient_is_that_of_the_mean_loss(ranks: Ranks, make_data: Callable[..., Data]) -> None:
    data = make_data(rows=(61, 1, 40, 9), lanes=5, global_batch=37)
    for size in (1, 3):
        for loss, expected, error in ranks(size, compare, data):
            assert loss == pytest.approx(expected, abs=1e-12)
            assert error < 1e-12


def compare(collective: Collective, data: Data) -> tuple[float, float, float]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exact = ExactReduction(model, optimizer, data.plan, tensors_of(collective), seed=5)

    def mean_loss(part: Batch) -> torch.Tensor:
        return (model(part["x"].double()).squeeze(1) - part["label"]).square().mean()

    def one(world: World) -> Batch:
        with Loader(data, world=world) as loader:
            return next(iter(loader))

    for _ in range(2):  # Gradients add up over batches until they are cleared.
        loss = exact.backward(one(collective.world), mean_loss)
    found = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    whole = mean_loss(one(World()))
    (2 * whole).backward()
    error = max((a - b.grad).abs().max().item() for a, b in zip(found, model.parameters(), strict=True))
    return loss.item(), whole.item(), error


def alone(model: nn.Module, data: Data) -> tuple[ExactReduction, Any, Batch]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loader(data) as loader:
        return (
            ExactReduction(model, optimizer, data.plan, SingleProcessTensorCollectives(), seed=5),
            optimizer,
            next(iter(loader)),
        )


def test_batch_norm_is_refused(make_data: Callable[..., Data]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    exact, _, batch = alone(model, make_data())
    with pytest.raises(BadJob, match=r"1\.num_batches_tracked of the model changed"):
        exact.backward(batch, lambda part: model(part["x"]).mean())
    model.eval()
    exact.backward(batch, lambda part: model(part["x"]).mean())


def test_sparse_gradients_are_refused(make_data: Callable[..., Data]) -> None:
    model = nn.Embedding(99, 2, sparse=True)
    exact, _, batch = alone(model, make_data())
    with pytest.raises(BadJob, match="sparse=False"):
        exact.backward(batch, lambda part: model(part["id"]).mean())


def test_a_step_on_gradients_of_one_rank_is_refused(make_data: Callable[..., Data]) -> None:
    model = nn.Linear(3, 1)
    exact, optimizer, batch = alone(model, make_data())
    model(batch["x"]).mean().backward()
    with pytest.raises(BadJob, match="worker.backward"):
        optimizer.step()
    optimizer.zero_grad()
    exact.backward(batch, lambda part: model(part["x"]).mean())
    optimizer.step()
    with pytest.raises(BadJob, match="worker.backward"):
        optimizer.step()


class WrittenGradients:
    """A number that records how it was added up. `LaneTree` needs no more of a tensor."""

    def __init__(self, text: str) -> None:
        self.text = text

    def add_(self, other: WrittenGradients) -> WrittenGradients:
        return WrittenGradients(f"({self.text}{other.text})")


def root(lanes: int, runs: list[range]) -> str:
    whole = LaneTree(lanes)
    for run in runs:
        part = LaneTree(lanes)
        for lane in run:
            part.add(LaneNode(0, lane), WrittenGradients(chr(ord("a") + lane)))  # type: ignore[arg-type]
        assert part.nodes == nodes_of(run, lanes)
        assert len(part.sums) <= max(2 * (lanes - 1).bit_length(), 1)
        for node, values in zip(part.nodes, part.sums, strict=True):
            whole.add(node, values)
    (total,) = whole.sums
    return total.text


def test_the_tree_is_that_of_the_lanes() -> None:
    assert root(1, [range(1)]) == "a"
    assert root(5, [range(5)]) == "(((ab)(cd))e)"
    assert root(6, [range(6)]) == "(((ab)(cd))(ef))"
    assert nodes_of(range(5, 10), 16) == [LaneNode(0, 5), LaneNode(1, 3), LaneNode(1, 4)]
    assert nodes_of(range(8, 16), 16) == [LaneNode(3, 1)]
    for lanes in range(1, 18):
        expected = root(lanes, [range(lanes)])
        for size in range(1, lanes + 1):
            runs = [range(rank * lanes // size, (rank + 1) * lanes // size) for rank in range(size)]
            assert root(lanes, runs) == expected, (lanes, size)
