"""Adasum, compared with the formula in NumPy and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from forebay.errors import InvalidOption
from forebay.training.collectives.adasum import adasum, register_adasum
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.tensor_collectives import (
    SingleProcessTensorCollectives,
    TensorCollectives,
    TorchTensorCollectives,
)

Ranks = Callable[..., list[Any]]

LENGTHS = [5, 0, 700, 1, 64]
SHARES = {1: [1.0], 2: [0.5, 1.5], 3: [1.0, 2.0, 0.0], 4: [1.0, 1.0, 1.0, 1.0]}


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    keep_a = 1 - a @ b / (2 * a @ a) if a @ a > 0 else 1.0
    keep_b = 1 - a @ b / (2 * b @ b) if b @ b > 0 else 1.0
    return keep_a * a + keep_b * b


def formula(gradients: list[np.ndarray]) -> np.ndarray:
    """Adasum of one tensor: the recursion over halves. Ranks beyond a power of two are folded into the first ones."""
    power = 1 << (len(gradients).bit_length() - 1)
    rest = gradients[power:]
    gradients = [pair(a, b) for a, b in zip(gradients, rest, strict=False)] + gradients[len(rest) : power]
    if len(gradients) == 1:
        return gradients[0]
    half = len(gradients) // 2
    return pair(formula(gradients[:half]), formula(gradients[half:]))


def by_tensor(gradients: list[np.ndarray], lengths: list[int]) -> np.ndarray:
    ends = np.cumsum(lengths)[:-1]
    columns = zip(*(np.split(gradient.astype(np.float64), ends) for gradient in gradients), strict=True)
    return np.concatenate([formula(list(column)) for column in columns])


def gradient_of(rank: int, dtype: torch.dtype) -> torch.Tensor:
    dice = torch.Generator().manual_seed(rank)
    common = torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(99))
    gradient = common * (0.5 + rank) + torch.randn(sum(LENGTHS), generator=dice)
    gradient[5:9] = 0
    if rank == 1:
        gradient[-64:] = 0
    return gradient.to(dtype)


def combine(collective: Collective, dtype: torch.dtype) -> tuple[np.ndarray, bool]:
    tensors: TensorCollectives = (
        TorchTensorCollectives() if collective.world.size > 1 else SingleProcessTensorCollectives()
    )
    own = gradient_of(collective.world.rank, dtype)
    given = own.clone()
    combined = adasum(given, LENGTHS, tensors)
    return combined.double().numpy(), combined.dtype == dtype and bool(torch.equal(given, own))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_the_formula(ranks: Ranks, size: int, dtype: torch.dtype, error: float) -> None:
    answers = ranks(size, combine, dtype)
    expected = by_tensor([gradient_of(rank, dtype).double().numpy() for rank in range(size)], LENGTHS)
    for found, kept in answers:
        assert kept, "same type, and what was given is as it was"
        assert np.array_equal(found, answers[0][0]), "the same bits on all ranks"
        np.testing.assert_allclose(found, expected, rtol=0, atol=error * np.abs(expected).max())


def extremes(collective: Collective) -> list[list[float]]:
    rank, size = collective.world.rank, collective.world.size
    tensors = TorchTensorCollectives()
    orthogonal = torch.zeros(size)
    orthogonal[rank] = 1.0 + rank
    parallel = torch.full((3,), 2.0)
    return [adasum(each, [len(each)], tensors).tolist() for each in (orthogonal, parallel, parallel * 0)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_orthogonal_gradients_are_added_and_parallel_ones_averaged(ranks: Ranks, size: int) -> None:
    for orthogonal, parallel, nothing in ranks(size, extremes):
        assert orthogonal == [1.0 + rank for rank in range(size)]
        assert parallel == [2.0] * 3
        assert nothing == [0.0] * 3


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 1)).double()


def train(collective: Collective) -> dict[str, Any]:
    rank, size = collective.world.rank, collective.world.size
    model = DistributedDataParallel(build(), find_unused_parameters=True)
    register_adasum(model)
    plain = build()
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(rank)).double()
    reduced, local = [], []
    for step in range(2):
        for each, gradients in ((model, reduced), (plain, local)):
            inner = each.module if each is model else each
            # A rank whose rows have no weight, and a layer of another length on each rank.
            loss = each(rows + step).square().mean() * SHARES[size][rank]
            loss.backward()
            gradients.append([parameter.grad.reshape(-1).numpy().copy() for parameter in inner.parameters()])
            inner.zero_grad()
    return {"reduced": reduced, "local": local}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_backward_leaves_the_adasum_of_all_ranks(ranks: Ranks, size: int) -> None:
    answers = ranks(size, train)
    for step in range(2):
        for number, found in enumerate(answers[0]["reduced"][step]):
            expected = formula([answer["local"][step][number] for answer in answers])
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
            for other in answers[1:]:
                assert np.array_equal(other["reduced"][step][number], found)


def refuse(collective: Collective) -> str:
    model = nn.Sequential(nn.Embedding(4, 2), nn.Embedding(4, 2, sparse=True))
    with pytest.raises(InvalidOption) as caught:
        register_adasum(DistributedDataParallel(model))
    return str(caught.value)


def test_sparse_gradients_are_refused(ranks: Ranks) -> None:
    assert "but 1 was built with sparse=True" in ranks(1, refuse)[0]
