"""Losses and gradients in several passes, and weighed by an array of the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.loader.loader import Loader
from forebay.errors import InvalidOption
from forebay.training.collectives.collective import Collective, Reduction, SingleProcessCollective
from forebay.training.collectives.micro_batches import MicroBatches
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions
from forebay.world import World

Ranks = Callable[..., list[Any]]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def errors_of(model: nn.Module, part: Batch) -> Tensor:
    return (model(part["x"].double())[:, 0] - part["label"]).square()


def mean_error(model: nn.Module, part: Batch) -> Tensor:
    return errors_of(model, part).mean()


def sum_of_counted(model: nn.Module, part: Batch) -> Tensor:
    """Sum over the rows that count: those with an even id. The array to weigh by has 1 for each."""
    return (errors_of(model, part) * part["counts"]).sum()


def steps_of(
    collective: Collective, data: Data, weigh: bool, micro_rows: int | None, reduction: Reduction = "mean"
) -> list[tuple[float, list[float], int]]:
    """Loss, gradient and number of calls of every step, on one rank."""
    options = StrategyOptions(reduction=reduction, plan=data.plan, seed=0)
    strategy = TorchDataParallel(collective, options)
    model, _ = strategy.prepare(net(), partial(torch.optim.SGD, lr=0.1))
    wrapped = strategy.wrap(model)
    found = []
    with Loader(data, world=collective.world) as loader:
        for batch in loader:
            batch["counts"] = (batch["id"] % 2 == 0).double()
            calls: list[int] = []

            def loss_of(part: Batch, calls: list[int] = calls) -> Tensor:
                calls.append(len(part["id"]))
                return (sum_of_counted if weigh else mean_error)(wrapped, part)

            model.zero_grad()
            passes = MicroBatches(rows=micro_rows, weigh_by="counts" if weigh else None)
            loss = strategy.backward(batch, loss_of, passes)
            # With weights, each rank has the loss of the global batch, and otherwise its share.
            is_total = weigh or reduction == "exact"
            share = loss.item() / collective.world.size
            total = loss.item() if is_total else float(collective.all_reduce(np.array([share]))[0])
            gradient = torch.cat([each.grad.flatten() for each in model.parameters()]).tolist()
            assert micro_rows is None or max(calls) <= micro_rows
            found.append((total, gradient, len(calls)))
    return found


def expected_of(data: Data, weigh: bool) -> list[tuple[float, list[float]]]:
    """The same from the definition: one pass over the whole batch."""
    found = []
    with Loader(data) as loader:
        for batch in loader:
            model = net()
            batch["counts"] = (batch["id"] % 2 == 0).double()
            count = max(float(batch["counts"].sum()), 1.0)
            loss = sum_of_counted(model, batch) / count if weigh else mean_error(model, batch)
            loss.backward()
            found.append((loss.item(), torch.cat([each.grad.flatten() for each in model.parameters()]).tolist()))
    return found


@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("micro_rows", [1, 3, None])
def test_passes_and_weights_give_the_loss_of_the_whole_batch(
    make_data: Callable[..., Data], weigh: bool, micro_rows: int | None
) -> None:
    data = make_data(global_batch=7)
    steps = steps_of(SingleProcessCollective(), data, weigh, micro_rows)
    for (loss, gradient, calls), (right_loss, right_gradient) in zip(steps, expected_of(data, weigh), strict=True):
        assert loss == pytest.approx(right_loss, rel=1e-12)
        assert gradient == pytest.approx(right_gradient, rel=1e-9, abs=1e-12)
        assert micro_rows is None or calls <= -(-7 // micro_rows)


@pytest.mark.parametrize(("size", "micro_rows"), [(2, 2), (3, 1), (4, None)])
def test_ranks_meet_equally_often(
    ranks: Ranks, make_data: Callable[..., Data], size: int, micro_rows: int | None
) -> None:
    # Batches of 5 rows over 4 lanes: one rank has a row more than the others, or one has none.
    data = make_data(global_batch=5)
    for weigh in (False, True):
        answers = ranks(size, steps_of, data, weigh, micro_rows)
        for steps in zip(*answers, strict=True):
            assert len({calls for _, _, calls in steps}) == 1
            assert all(step[:2] == steps[0][:2] for step in steps)
        for (loss, gradient, _), (right_loss, right_gradient) in zip(answers[0], expected_of(data, weigh), strict=True):
            assert loss == pytest.approx(right_loss, rel=1e-12)
            assert gradient == pytest.approx(right_gradient, rel=1e-9, abs=1e-12)


def test_exact_sums_are_equal_to_the_bit_in_passes(ranks: Ranks, make_data: Callable[..., Data]) -> None:
    data = make_data(global_batch=10)
    alone = steps_of(SingleProcessCollective(), data, True, 2, "exact")
    for answer in ranks(2, steps_of, data, True, 2, "exact"):
        assert [step[:2] for step in answer] == [step[:2] for step in alone]
    for (loss, _, _), (right_loss, _) in zip(alone, expected_of(data, weigh=True), strict=True):
        assert loss == pytest.approx(right_loss, rel=1e-12)


def test_passes_follow_from_the_plan(make_data: Callable[..., Data]) -> None:
    data = make_data(global_batch=10, lanes=4)
    parts = []
    for rank in range(3):
        with Loader(data, world=World(rank=rank, size=3)) as loader:
            parts.append(list(loader))
    for batches in zip(*parts, strict=True):
        most = max(batch.num_rows for batch in batches)
        for rank, batch in enumerate(batches):
            found = MicroBatches(rows=2).num_passes(batch, data.plan, World(rank=rank, size=3))
            assert found == -(-most // 2)


def test_batch_without_anything_that_counts_has_no_gradient(make_data: Callable[..., Data]) -> None:
    data = make_data(global_batch=1)
    steps = steps_of(SingleProcessCollective(), data, True, None)
    assert any(loss == 0 and not any(gradient) for loss, gradient, _ in steps)


def test_unknown_array_and_no_rows_are_refused() -> None:
    batch = Batch({"x": torch.ones(2)}, num_rows=2, size=2)
    with pytest.raises(InvalidOption, match="weigh_by='targets' is not an array of the batch, which has 'x'"):
        MicroBatches(weigh_by="targets").over(batch, SingleProcessCollective(), ranks=1)
    with pytest.raises(InvalidOption, match="micro_rows=0"):
        MicroBatches(rows=0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
def test_weights_of_any_dtype_are_added_up_without_overflow(make_data: Callable[..., Data], dtype: type) -> None:
    [batch, *_] = list(Loader(make_data(rows=(2000, 1000, 1, 1), global_batch=3000)))
    batch["weights"] = torch.from_numpy(np.full(batch.num_rows, 100, dtype))
    weighed = MicroBatches(weigh_by="weights").over(batch, SingleProcessCollective(), ranks=1)
    assert weighed.scale == 1 / (100 * batch.num_rows)
