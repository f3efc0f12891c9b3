from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.errors import InvalidOption
from forebay.training.collectives.collective import Collective, Reduction, SingleProcessCollective
from forebay.training.strategies.ddp import FixedBuckets, TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions, build_strategy
from forebay.training.strategies.torch_strategies import TORCH_STRATEGIES

Ranks = Callable[..., list[Any]]


def options_of(data: Data, reduction: Reduction = "mean") -> StrategyOptions:
    return StrategyOptions(reduction=reduction, plan=data.plan, seed=data.plan.seed)


def layout(collective: Collective, options: StrategyOptions) -> dict[str, Any]:
    torch.manual_seed(collective.world.rank)
    strategy = TorchDataParallel(collective, options)
    model, optimizer = strategy.prepare(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), partial(torch.optim.SGD, lr=1))
    wrapped = strategy.wrap(model)
    parameters = [parameter.tolist() for parameter in model.parameters()]
    rebuilt = wrapped.reducer._rebuild_buckets()
    wrapped(torch.ones(2, 4)).sum().backward()
    frozen = nn.Linear(1, 1).requires_grad_(False)
    return {
        "kind": type(wrapped).__name__,
        "parameters": parameters,
        "trained": [id(parameter) for parameter in optimizer.param_groups[0]["params"]]
        == [id(parameter) for parameter in model.parameters()],
        "rebuilt": rebuilt or wrapped.reducer._rebuild_buckets(),
        "unwrapped": TorchDataParallel(collective, options).wrap(frozen) is frozen,
        "inner": wrapped.module is model,
    }


def test_buckets_are_settled_at_construction(ranks: Ranks, make_data: Callable[..., Data]) -> None:
    """Fails when torch moves one of the private names that `FixedBuckets` depends on."""
    answers = ranks(2, layout, options_of(make_data()))
    assert answers[0] == answers[1], "rank 0's parameters on all ranks"
    assert answers[0]["kind"] == FixedBuckets.__name__
    assert not answers[0]["rebuilt"]
    assert answers[0]["trained"]
    assert answers[0]["unwrapped"]
    assert answers[0]["inner"]


@pytest.mark.parametrize("reduction", ["mean", "adasum", "exact"])
def test_world_of_one_reduces_nothing(make_data: Callable[..., Data], reduction: Reduction) -> None:
    strategy = build_strategy("ddp", TORCH_STRATEGIES, SingleProcessCollective(), options_of(make_data(), reduction))
    model, _ = strategy.prepare(nn.Linear(1, 1), partial(torch.optim.SGD, lr=1))
    assert strategy.wrap(model) is model


def test_unknown_strategy_is_refused_with_the_known_ones(make_data: Callable[..., Data]) -> None:
    with pytest.raises(
        InvalidOption,
        match=r"strategy='zero9' was given, .* with 'ddp', 'fsdp2', 'zero1', .* only\. Set strategy='ddp'",
    ) as refusal:
        build_strategy("zero9", TORCH_STRATEGIES, SingleProcessCollective(), options_of(make_data()))
    assert refusal.value.facts == {"strategy": "zero9", "known": sorted(TORCH_STRATEGIES)}
