"""Fails when torch moves the private name that `LocalGradient` depends on, or reorders its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from forebay.training.batch_size.local_gradient import LocalGradient, squared_norm
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.strategies.ddp import FixedBuckets

Ranks = Callable[..., list[Any]]


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1)).double()


def watch(collective: Collective) -> dict[str, Any]:
    model = build()
    wrapped = FixedBuckets(model) if collective.world.size > 1 else model
    gradient = LocalGradient(model.parameters())
    seen: list[float] = []

    def look(local: Tensor) -> None:
        seen.extend([local.item(), squared_norm(gradient.reduced().values()).item()])

    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(collective.world.rank)).double()
    passes = []
    for step in range(4):
        if step % 2:
            gradient.arm(look)
        wrapped(rows).square().mean().backward()
        passes.append(gradient.passes)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        gradient.disarm()
        model.zero_grad()
    own = build()
    own(rows).square().mean().backward()
    return {
        "seen": seen,
        "passes": passes,
        "local": torch.cat([each.grad.reshape(-1) for each in own.parameters()]).numpy(),
    }


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_rank_sees_its_own_gradient_and_the_mean(ranks: Ranks, size: int) -> None:
    answers = ranks(size, watch) if size > 1 else [watch(SingleProcessCollective())]
    whole = np.mean([answer["local"] for answer in answers], axis=0)
    for answer in answers:
        local = answer["local"]
        np.testing.assert_allclose(answer["seen"], [local @ local, whole @ whole] * 2, rtol=1e-6)
        assert answer["passes"] == [0, 1, 1, 1], "nothing runs in a step that is not asked for"


def test_sparse_and_missing_gradients() -> None:
    table, unused = nn.Embedding(5, 2, sparse=True), nn.Linear(1, 1)
    gradient = LocalGradient([*table.parameters(), *unused.parameters()])
    seen: list[float] = []
    gradient.arm(lambda local: seen.append(local.item()))
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert seen == [pytest.approx(2 * 4.0 + 2 * 1.0)]
    assert list(gradient.reduced()) == [0]


def test_every_backward_counts() -> None:
    model = nn.Linear(2, 1)
    gradient = LocalGradient(model.parameters())
    seen: list[float] = []
    gradient.arm(lambda local: seen.append(local.item()))
    for factor in (1.0, 2.0):
        (model(torch.ones(1, 2)) * factor).sum().backward()
    assert (gradient.passes, seen) == (2, [3.0, 12.0])
