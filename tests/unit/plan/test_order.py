"""The laws of every order: what a loader relies on, for whatever is ordered."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from forebay.manifest.manifest import Manifest
from forebay.plan.order import Order
from forebay.plan.plan import build_plan
from forebay.world import World

Make = Callable[..., Manifest]
Orders = dict[str, Order]


def orders(make: Make) -> Orders:
    plan = build_plan(make([40, 8, 90, 1, 61]), seed=2, lanes=3, window_rows=16)
    return {"plan": plan}


KINDS = ("plan",)


@pytest.fixture(params=KINDS)
def order(request: pytest.FixtureRequest, memory_manifest: Make) -> Order:
    return orders(memory_manifest)[request.param]


def test_lanes_share_the_positions_and_each_keeps_their_order(order: Order) -> None:
    every = range(order.lanes)
    whole = order.positioned_rows(1, 0, order.num_rows, every)
    assert whole.position.tolist() == list(range(order.num_rows))
    owner = order.row_lanes(1, 0, order.num_rows, every)
    for start, stop in ((0, order.num_rows), (17, 17), (17, 18), (5, 61), (order.num_rows - 1, order.num_rows)):
        for lanes in ((0,), (order.lanes - 1,), tuple(every), tuple(every)[1:]):
            part = order.positioned_rows(1, start, stop, lanes)
            mine = np.flatnonzero(np.isin(owner[start:stop], lanes)) + start
            assert part.position.tolist() == mine.tolist()
            assert part.block.tolist() == whole.block[mine].tolist()
            assert part.row.tolist() == whole.row[mine].tolist()
            assert order.row_lanes(1, start, stop, lanes).tolist() == owner[mine].tolist()


def test_rows_are_rows_of_their_blocks(order: Order) -> None:
    _, block, row = order.positioned_rows(0, 0, order.num_rows, range(order.lanes))
    assert block.min() >= 0 and block.max() < len(order.block_rows) == sum(map(len, order.manifests))
    assert row.min() >= 0 and np.all(row < order.block_rows[block])


@pytest.mark.parametrize("start", [0, 50, 199])
@pytest.mark.parametrize("size", [1, 3])
def test_spans_cover_every_use_of_a_block(order: Order, start: int, size: int) -> None:
    for rank in range(size):
        lanes = order.owned_lanes(World(rank=rank, size=size))
        spans = list(order.block_spans(1, start, lanes))
        assert [span.need for span in spans] == sorted(span.need for span in spans)
        used = order.positioned_rows(1, start, order.num_rows, lanes)
        for position, block, _ in zip(*used, strict=True):
            assert any(span.block == block and span.need <= position < span.release for span in spans)
        assert {span.block for span in spans} <= set(
            order.positioned_rows(1, 0, order.num_rows, lanes).block.tolist()
        ), "no block is read in vain"


def test_a_batch_is_its_positions(order: Order) -> None:
    position = 0
    while size := order.batch_size(position, 16):
        _, block, row = order.positioned_rows(2, position, position + size, range(order.lanes))
        whole = order.batch(2, position, 16)
        assert whole.block.tolist() == block.tolist() and whole.row.tolist() == row.tolist()
        position += size
