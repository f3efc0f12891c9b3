"""The laws of every order: what a loader relies on, for whatever is ordered."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.row_mask import KeptRows, RowMask
from forebay.data.plan.cursor import Cursor
from forebay.data.plan.mixture.mixture import Mixture
from forebay.data.plan.order import Order, order_digest
from forebay.data.plan.plan import build_plan
from forebay.data.windows.index import WindowIndex, WindowShape
from forebay.data.windows.line import BlockRuns, RunNames, StepLine
from forebay.data.windows.splits import TargetBounds
from forebay.errors import TooManyRanks
from forebay.world import World

Make = Callable[..., Manifest]
Orders = dict[str, Order]


@dataclass(frozen=True, kw_only=True)
class WindowedSeries:
    """Windows of 15 steps over a series whose steps are the rows of `manifest`."""

    manifest: Manifest

    @property
    def windows(self) -> WindowIndex:
        number = np.arange(len(self.manifest))
        runs = BlockRuns(block=number, first=0 * number, steps=self.manifest.rows, entity=0 * number, times=None)
        line = StepLine.of(runs, 1, RunNames(run=str))
        bounds = TargetBounds.all_of(line)
        return WindowIndex(line, WindowShape(past=15), bounds, num_blocks=len(number), data_id="d")


def orders(make: Make, lanes: int = 3) -> Orders:
    plan = build_plan(make([40, 8, 90, 1, 61]), seed=2, lanes=lanes, shuffle_rows=16)
    others = {
        "large": plan,
        "small": build_plan(make([9, 2]), seed=5, lanes=lanes + 1, shuffle_rows=8),
        "middle": build_plan(make([30, 30, 13]), seed=1, lanes=lanes, shuffle_rows=16),
    }
    weights = {"large": 0.6, "small": 0.15, "middle": 0.25}
    stages = [(0, {"large": 1.0}), (90, weights), (400, {"small": 2.0, "middle": 1.0})]
    series = WindowedSeries(manifest=make([10] * 23 + [3]))
    return {
        "plan": plan,
        "windows": build_plan(series, seed=2, lanes=lanes, shuffle_rows=16),
        "alone": Mixture({"only": plan}, {"only": 3}),
        "all": Mixture(others, weights),
        "first": Mixture(
            others | {"small": build_plan(make([60]), lanes=lanes)},
            {"large": 5, "small": 1, "middle": 1},
            until="first",
        ),
        "once": Mixture(others, weights, until="once"),
        "stages": Mixture(others, stages, rows=260),
        "continued": Mixture.continue_from(
            Mixture({"large": plan}, {"large": 1}, rows=230),
            Cursor(plan_id=Mixture({"large": plan}, {"large": 1}, rows=230).id, epoch=1, position=40, global_batch=8),
            others,
            weights,
        ),
    }


KINDS = ("plan", "windows", "alone", "all", "first", "once", "stages", "continued")


@pytest.fixture(params=KINDS)
def order(request: pytest.FixtureRequest, memory_manifest: Make) -> Order:
    return orders(memory_manifest)[request.param]


@pytest.fixture(params=[0, 1])
def epoch(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_lanes_share_the_positions_and_each_keeps_their_order(order: Order, epoch: int) -> None:
    every = range(order.lanes)
    whole = order.positioned_rows(epoch, 0, order.num_rows, every)
    assert whole.position.tolist() == list(range(order.num_rows))
    owner = order.row_lanes(epoch, 0, order.num_rows, every)
    for start, stop in ((0, order.num_rows), (17, 17), (17, 18), (5, 61), (order.num_rows - 1, order.num_rows)):
        for lanes in ((0,), (order.lanes - 1,), tuple(every), tuple(every)[1:]):
            part = order.positioned_rows(epoch, start, stop, lanes)
            mine = np.flatnonzero(np.isin(owner[start:stop], lanes)) + start
            assert part.position.tolist() == mine.tolist()
            assert part.block.tolist() == whole.block[mine].tolist()
            assert part.row.tolist() == whole.row[mine].tolist()
            assert order.row_lanes(epoch, start, stop, lanes).tolist() == owner[mine].tolist()


def test_rows_are_rows_of_their_blocks(order: Order) -> None:
    _, block, row = order.positioned_rows(0, 0, order.num_rows, range(order.lanes))
    assert block.min() >= 0 and block.max() < len(order.block_rows) == sum(map(len, order.manifests))
    rows = order.windows[0].rows if order.windows else order.block_rows
    assert row.min() >= 0 and np.all(row < rows[block])


@pytest.mark.parametrize("start", [0, 50, 199])
@pytest.mark.parametrize("size", [1, 3])
def test_spans_cover_every_use_of_a_block(order: Order, epoch: int, start: int, size: int) -> None:
    for rank in range(size):
        lanes = order.owned_lanes(World(rank=rank, size=size))
        spans = list(order.block_spans(epoch, start, lanes))
        assert [span.need for span in spans] == sorted(span.need for span in spans)
        used = order.positioned_rows(epoch, start, order.num_rows, lanes)
        for position, block, _ in zip(*used, strict=True):
            assert any(span.block == block and span.need <= position < span.release for span in spans)


def test_a_batch_is_its_positions(order: Order) -> None:
    position = 0
    while size := order.batch_size(position, 16):
        _, block, row = order.positioned_rows(2, position, position + size, range(order.lanes))
        whole = order.batch(2, position, 16)
        assert whole.block.tolist() == block.tolist() and whole.row.tolist() == row.tolist()
        position += size


def test_ranks_share_the_same_global_batches(order: Order, epoch: int) -> None:
    for size in range(1, order.lanes + 1):
        position = 0
        while rows := order.batch_size(position, 24):
            whole = pairs(order, epoch, position, World())
            parts = [pairs(order, epoch, position, World(rank=rank, size=size)) for rank in range(size)]
            assert sorted(sum(parts, [])) == sorted(whole) and len(whole) == rows
            position += rows


def pairs(order: Order, epoch: int, position: int, world: World) -> list[tuple[int, int]]:
    block, row = order.batch(epoch, position, 24, world)
    return list(zip(block.tolist(), row.tolist(), strict=True))


GOLDEN = {
    "plan": ("3978e3c5db01a8b0", "2f4a546477b9b6a7"),
    "alone": ("ba655b7aa018a85e", "2f4a546477b9b6a7"),
    "all": ("f51d4f25c9fea9f3", "61c2746cf5507932"),
    "first": ("7ce595a0d42a6521", "6c0ffe9a2fcc8bcb"),
    "once": ("5d79b8c5dcb2944d", "664630ec3e2f5ac3"),
    "stages": ("974e266f19f640dd", "c04fdf04a4ef6ff6"),
    "continued": ("ccdfca8cb0649afc", "ccd92409d70686b3"),
}
"""Id and digest of epoch 1 of each order, whatever the number of ranks: a stored cursor depends on them."""


@pytest.mark.parametrize("kind", GOLDEN)
def test_1_to_16_ranks_have_the_pinned_order(kind: str, memory_manifest: Make) -> None:
    order = orders(memory_manifest, lanes=16)[kind]
    found = {order_digest(order, epoch=1, global_batch=48, world_size=size) for size in range(1, 17)}
    assert (order.id[:16], {digest[:16] for digest in found}) == (GOLDEN[kind][0], {GOLDEN[kind][1]})


def test_1_to_4096_ranks_have_the_order_of_one(memory_manifest: Make) -> None:
    """With a mixture of two datasets, one of them filtered: each row once, in the same global batches."""
    rng = np.random.default_rng(4)
    whole = memory_manifest(rng.integers(5, 40, 450).tolist(), groups_per_file=10)
    mask = RowMask.of([np.append(rng.random(rows - 1) < 0.7, True) for rows in whole.rows.tolist()])
    filtered = replace(whole, kept=KeptRows(mask=mask, where="x > 0"))
    other = build_plan(memory_manifest(rng.integers(5, 40, 150).tolist()), seed=3, lanes=8192)
    plan = build_plan(filtered, seed=2, lanes=4096, shuffle_rows=64)
    order = Mixture({"filtered": plan, "other": other}, until="once")
    found = {order_digest(order, epoch=1, global_batch=9_000, world_size=size) for size in (1, 64, 4096)}
    assert len(found) == 1 and order.lanes == 4096
    _, block, row = order.positioned_rows(1, 0, order.num_rows, range(4096))
    rows = list(zip(block.tolist(), row.tolist(), strict=True))
    assert len(rows) == len(set(rows)) == filtered.num_rows + other.num_rows
    mine = block < len(whole)
    assert all(mask.keeps(each)[at] for each, at in zip(block[mine].tolist(), row[mine].tolist(), strict=True))


def test_a_pickled_copy_is_the_same_order(order: Order, epoch: int) -> None:
    copy = pickle.loads(pickle.dumps(order))
    assert copy.id == order.id and dict(copy.continues) == dict(order.continues)
    assert order_digest(copy, epoch=epoch, global_batch=24) == order_digest(order, epoch=epoch, global_batch=24)


def test_too_many_ranks_are_refused(order: Order) -> None:
    with pytest.raises(TooManyRanks, match=r"9 ranks cannot share 3 lanes.*lanes=16"):
        order.owned_lanes(World(size=9))
