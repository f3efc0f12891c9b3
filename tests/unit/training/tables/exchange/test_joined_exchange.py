"""Rows of several lookups in one message arrive as if each lookup had its own message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.tables.exchange.joined_exchange import OutgoingRows, exchange_together

KINDS: list[tuple[tuple[int, ...], torch.dtype]] = [
    ((3,), torch.uint8),
    ((), torch.int32),
    ((2,), torch.int64),
    ((5,), torch.float32),
]
"""Shape of a row, and dtype. The bytes of the first one make all others begin anywhere."""


def apart_and_together(collective: Collective, *, is_known: bool) -> list[tuple[Any, Any]]:
    """Parts of each of `KINDS` that this rank received, by an exchange alone and by one together. Some are empty."""
    rank, size, tensors = collective.world.rank, collective.world.size, collective.tensor_collectives()
    outgoing = []
    for number, (shape, dtype) in enumerate(KINDS):
        send = [(rank + 2 * other + number) % 4 for other in range(size)]
        receive = [(other + 2 * rank + number) % 4 for other in range(size)]
        generator = torch.Generator().manual_seed(10 * rank + number)
        rows = torch.randint(100, (sum(send), *shape), generator=generator).to(dtype)
        outgoing.append(OutgoingRows(rows, send, receive if is_known else None))
    apart = [tensors.exchange(each.rows, each.send, each.receive) for each in outgoing]
    together = [(found.rows, found.receive) for found in exchange_together(tensors, outgoing)]
    return list(zip(apart, together, strict=True))


def assert_equal(found: list[tuple[Any, Any]]) -> None:
    assert len(found) == len(KINDS)
    for (rows, receive), (others, other_receive) in found:
        assert (rows.dtype, list(receive)) == (others.dtype, list(other_receive))
        assert torch.equal(rows, others)


@pytest.mark.parametrize("is_known", [False, True])
def test_together_is_as_apart(ranks: Callable[..., list[Any]], is_known: bool) -> None:
    for size in (2, 3):
        for found in ranks(size, lambda collective: apart_and_together(collective, is_known=is_known)):
            assert_equal(found)
    assert_equal(apart_and_together(SingleProcessCollective(), is_known=is_known))


def test_nothing_is_sent_for_none() -> None:
    assert exchange_together(SingleProcessCollective().tensor_collectives(), []) == []
