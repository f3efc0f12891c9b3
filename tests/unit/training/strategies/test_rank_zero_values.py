"""All ranks have rank 0's statistics of forward passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.training.collectives.collective import Collective
from forebay.training.strategies.strategy import StrategyOptions, build_strategy
from forebay.training.strategies.torch_strategies import TORCH_STRATEGIES


def evaluated(collective: Collective, options: StrategyOptions, name: str) -> tuple[float, float]:
    """Mean of batch norm that an evaluation after a step sees on this rank, and its output."""
    strategy = build_strategy(name, TORCH_STRATEGIES, collective, options)
    torch.manual_seed(0)
    model, optimizer = strategy.prepare(
        nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)), partial(torch.optim.SGD, lr=1)
    )
    wrapped = strategy.wrap(model)
    wrapped(torch.tensor([[1.0], [3.0]]) * (collective.world.rank + 1)).sum().backward()
    optimizer.step()
    wrapped.eval()
    with torch.no_grad():
        output = wrapped(torch.ones(1, 1))
    strategy.close()
    return float(dict(model.named_buffers())["0.running_mean"]), float(output)


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_an_evaluation_sees_the_statistics_of_rank_0(
    ranks: Callable[..., list[Any]], make_data: Callable[..., Data], name: str
) -> None:
    data = make_data()
    first, second = ranks(2, evaluated, StrategyOptions(reduction="mean", plan=data.plan, seed=0), name)
    assert first == second
    assert first[0] == pytest.approx(0.2)
