"""Sums over ranks of several tensors share messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tables.many_tables import CountedCollective
from torch import Tensor

from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.tables.exchange.joined_exchange import sum_together

Ranks = Callable[..., list[Any]]
SHAPES = ((5, 3), (1,), (0, 4), (17,), (2, 2))


def parts_of(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def summed(collective: Collective, most: int) -> tuple[list[Tensor], int]:
    counted, parts = CountedCollective(collective), parts_of(collective.world.rank)
    sum_together(counted.tensors, parts, most=most)
    return parts, counted.tensors.sums


@pytest.mark.parametrize(("size", "most", "messages"), [(2, 1000, 1), (2, 16, 3), (3, 1000, 1), (3, 4, 4)])
def test_sums_are_those_of_each_part_alone(ranks: Ranks, size: int, most: int, messages: int) -> None:
    wanted = [torch.stack(each).sum(0) for each in zip(*map(parts_of, range(size)), strict=True)]
    found = ranks(size, summed, most)
    for parts, sent in found:
        assert sent == messages
        for part, each, first in zip(parts, wanted, found[0][0], strict=True):
            assert torch.equal(part, first)  # on all ranks
            torch.testing.assert_close(part, each, rtol=0 if size == 2 else 1e-5, atol=0 if size == 2 else 1e-6)


def test_a_rank_alone_keeps_its_numbers() -> None:
    parts, _ = summed(SingleProcessCollective(), 4)
    assert all(torch.equal(found, each) for found, each in zip(parts, parts_of(0), strict=True))
