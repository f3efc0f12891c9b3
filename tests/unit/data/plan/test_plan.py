"""The laws of the order: exactly once, the same for every world, resumable anywhere, pinned by literals."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.row_mask import KeptRows, RowMask
from forebay.data.plan.order import order_digest
from forebay.data.plan.plan import Plan, build_plan
from forebay.errors import InvalidOption, TooManyRanks
from forebay.world import World

Make = Callable[..., Manifest]
Pairs = list[tuple[int, int]]

rows_strategy = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any)
filter_strategy = st.sampled_from([0, 0, 1, 3, 17])


def pairs(
    plan: Plan, epoch: int, position: int, batch: int, world: World | None = None, last: str = "balance"
) -> Pairs:
    block, row = plan.batch(epoch, position, batch, world, last=last)
    return list(zip(block.tolist(), row.tolist(), strict=True))


def walk(plan: Plan, epoch: int, batch: int, start: int = 0, last: str = "balance") -> list[Pairs]:
    batches, position = [], start
    while size := plan.batch_size(position, batch, last=last):
        batches.append(pairs(plan, epoch, position, batch, last=last))
        assert len(batches[-1]) == size
        position += size
    return batches


def flat(batches: list[Pairs]) -> Pairs:
    return [pair for batch in batches for pair in batch]


def everything(rows: list[int]) -> Pairs:
    return [(block, row) for block, count in enumerate(rows) for row in range(count)]


def kept(manifest: Manifest) -> Pairs:
    if manifest.kept is None:
        return everything(manifest.rows.tolist())
    masks = [manifest.kept.mask.keeps(block) for block in range(len(manifest))]
    return [(block, row) for block, mask in enumerate(masks) for row in np.flatnonzero(mask).tolist()]


def filtered(manifest: Manifest, every: int) -> Manifest:
    """All rows for `every` 0, else about one of `every` rows of the row groups that have one."""
    if not every:
        return manifest
    masks = [np.arange(rows) * 7919 % every == index % every for index, rows in enumerate(manifest.rows.tolist())]
    some = [mask for mask in masks if mask.any()] or [np.arange(max(manifest.rows)) == 0]
    left = manifest.take([mask.any() for mask in masks] if any(map(np.any, masks)) else [int(np.argmax(manifest.rows))])
    return replace(left, kept=KeptRows(mask=RowMask.of(some), where="x > 0"))


def test_golden_order(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([100] * 200), seed=1)
    assert (
        order_digest(plan, epoch=1, global_batch=100)
        == "574631769f266d546b0f53fe93e89c6cc747ee680fdd8ed2e3b81a76c7945e55"
    )


def test_golden_order_of_few_row_groups(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([30, 1, 44, 25]), seed=7, lanes=4, shuffle_rows=16)
    assert pairs(plan, 0, 0, 8) == [(0, 2), (3, 6), (2, 5), (2, 39), (0, 3), (3, 7), (2, 6), (2, 38)]
    assert (
        order_digest(plan, epoch=1, global_batch=8)
        == "fdce2427750a92a7e921a55c555e51d3e75d699eb91b3a964260f0d5f7bbf675"
    )


def test_golden_order_of_few_rows(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([3, 1, 4, 2]), seed=7, lanes=3, shuffle_rows=4)
    assert flat(walk(plan, 0, 4)) == [(2, 1), (0, 1), (0, 0), (2, 3), (3, 1), (2, 0), (3, 0), (2, 2), (1, 0), (0, 2)]
    assert flat(walk(plan, 1, 4)) == [(0, 2), (2, 2), (2, 3), (2, 1), (1, 0), (3, 1), (2, 0), (0, 1), (3, 0), (0, 0)]
    assert (
        order_digest(plan, epoch=0, global_batch=4)
        == "dd7d4de48ada35ce06334c2b6d3ecaa76229efe32c736c8f603a048ad02bdf5b"
    )


def test_golden_order_of_large_windows(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([5000, 7000, 4000]), seed=0, lanes=2, shuffle_rows=4096)
    assert [pairs(plan, 0, position, 4)[0] for position in (0, 1, 5000, 15_996)] == [
        (0, 812),
        (2, 3605),
        (0, 2236),
        (0, 602),
    ]


def test_unshuffled_lanes_are_ranges_of_the_manifest(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([3, 1, 4, 2]), seed=7, lanes=2, shuffle=False)
    order = flat(walk(plan, 0, 4))
    line = everything([3, 1, 4, 2])
    assert order[::2] == line[:5]
    assert order[1::2] == line[5:]


@settings(max_examples=60)
@given(
    rows=rows_strategy,
    seed=st.integers(0, 2**64 - 1),
    lanes=st.integers(1, 9),
    shuffle_rows=st.integers(1, 80),
    batch=st.integers(9, 70),
    shuffle=st.booleans(),
    every=filter_strategy,
)
def test_every_row_exactly_once_in_every_world(
    memory_manifest: Make,
    rows: list[int],
    every: int,
    seed: int,
    lanes: int,
    shuffle_rows: int,
    batch: int,
    shuffle: bool,
) -> None:
    manifest = filtered(memory_manifest(rows), every)
    plan = build_plan(manifest, seed=seed, lanes=lanes, shuffle_rows=shuffle_rows, shuffle=shuffle)
    batches = walk(plan, 3, batch)
    assert sorted(flat(batches)) == kept(manifest)
    assert plan.num_rows == manifest.num_rows == len(kept(manifest))
    assert len(batches) == plan.num_batches(batch)
    sizes = [len(each) for each in batches]
    assert max(sizes) <= batch and max(sizes) - min(sizes) <= 1 and min(sizes) > 0
    for size in range(1, lanes + 1):
        owned = [plan.owned_lanes(World(rank=rank, size=size)) for rank in range(size)]
        assert sorted(sum(owned, ())) == list(range(lanes))
        position = 0
        for whole in batches:
            parts = [pairs(plan, 3, position, batch, World(rank=rank, size=size)) for rank in range(size)]
            assert sorted(flat(parts)) == sorted(whole)
            order = {pair: number for number, pair in enumerate(whole)}
            assert all([order[p] for p in part] == sorted(order[p] for p in part) for part in parts)
            position += len(whole)


@settings(max_examples=60)
@given(rows=rows_strategy, every=filter_strategy, batch=st.integers(4, 50), other=st.integers(4, 50), data=st.data())
def test_resume_anywhere_gives_the_remaining_batches(
    memory_manifest: Make, rows: list[int], every: int, batch: int, other: int, data: st.DataObject
) -> None:
    plan = build_plan(filtered(memory_manifest(rows), every), seed=1, lanes=4, shuffle_rows=16)
    batches = walk(plan, 0, batch)
    done = data.draw(st.integers(0, len(batches) - 1))
    position = len(flat(batches[:done]))
    assert walk(plan, 0, batch, start=position) == batches[done:]
    changed = walk(plan, 0, other, start=position)
    assert flat(changed) == flat(batches[done:])
    assert max(map(len, changed)) <= other


@given(rows=rows_strategy, every=filter_strategy, batch=st.integers(4, 50))
def test_drop_makes_full_batches_of_the_same_order(
    memory_manifest: Make, rows: list[int], every: int, batch: int
) -> None:
    plan = build_plan(filtered(memory_manifest(rows), every), seed=1, lanes=4)
    batches = walk(plan, 0, batch, last="drop")
    assert len(batches) == plan.num_rows // batch
    assert all(len(each) == batch for each in batches)
    assert flat(batches) == flat(walk(plan, 0, batch))[: len(flat(batches))]


def test_a_rank_keeps_its_rows_in_every_epoch(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([50, 20, 70]), seed=3, lanes=4)
    world = World(rank=1, size=3)
    owned = [sorted(plan.rows(epoch, 0, 140, plan.owned_lanes(world)).row.tolist()) for epoch in range(3)]
    assert owned[0] == owned[1] == owned[2]


@pytest.mark.parametrize("lanes", [8, 64, 512])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_parts_of_a_batch_are_even_also_of_one_smaller_than_the_lanes(
    memory_manifest: Make, lanes: int, size: int
) -> None:
    plan = build_plan(memory_manifest([5000]), seed=3, lanes=lanes)
    for batch in (lanes // 2, lanes + lanes // 3, 3 * lanes - 1):
        for position in (0, 777, 3001):
            parts = [len(pairs(plan, 0, position, batch, World(rank=rank, size=size))) for rank in range(size)]
            # With lanes that divide evenly, ranks differ by one row. Otherwise by as many as lanes differ, and a few.
            uneven = 0 if lanes % size == 0 else -(-batch // lanes) + size
            assert max(parts) - min(parts) <= 1 + uneven, (batch, position, parts)


@pytest.mark.parametrize("rows", [[2], [1, 1], [5], [9], [16], [17], [3, 0, 4, 20], [100], [127], [128], [129]])
def test_the_order_is_new_in_every_epoch_however_few_the_rows(memory_manifest: Make, rows: list[int]) -> None:
    plan = build_plan(memory_manifest(rows), seed=5)
    orders = {tuple(flat(walk(plan, epoch, 16))) for epoch in range(24)}
    possible = min(math.factorial(sum(rows)), 24)
    assert len(orders) >= (20 if possible == 24 else 2)
    assert all(sorted(order) == everything(rows) for order in orders)
    first = [flat(walk(plan, epoch, 16))[0] for epoch in range(40)]
    assert len(set(first)) > 1, "the first row changes, too"


@pytest.mark.parametrize("rows", [[20_000], [7000, 9000], [5000] * 4])
def test_lanes_of_few_row_groups_begin_elsewhere_in_every_epoch(memory_manifest: Make, rows: list[int]) -> None:
    plan = build_plan(memory_manifest(rows), seed=5, lanes=2, shuffle_rows=400)
    assert len({tuple(flat(walk(plan, epoch, 5000))) for epoch in range(3)}) == 3
    first = [set(pairs(plan, epoch, 0, 100)) for epoch in range(20)]
    again = [len(one & other) for number, one in enumerate(first) for other in first[:number]]
    assert np.mean(again) < 10, "100 rows of the same first window would be there again"


def test_few_rows_are_shuffled_through_all_lanes(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([20]), seed=5)
    counts = np.zeros((20, 20), dtype=int)
    for epoch in range(500):
        for position, (_, row) in enumerate(flat(walk(plan, epoch, 20))):
            counts[position, row] += 1
    assert counts.min() > 5 and counts.max() < 50, "25 expected, with a deviation of 5"


def test_epochs_and_seeds_differ_and_zero_is_a_seed(memory_manifest: Make) -> None:
    manifest = memory_manifest([100, 30, 90])
    orders = [flat(walk(build_plan(manifest, seed=seed), epoch, 16)) for seed in (0, 1) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 8
    assert flat(walk(build_plan(manifest, seed=0), 0, 16)) == orders[0]


def test_digest_tells_orders_apart_and_forgets_the_order_within_a_batch(memory_manifest: Make) -> None:
    manifest = memory_manifest([100, 30])
    plan = build_plan(manifest, seed=0, lanes=4)
    assert order_digest(plan, epoch=0, global_batch=32) != order_digest(plan, epoch=1, global_batch=32)
    assert order_digest(plan, epoch=0, global_batch=32) != order_digest(plan, epoch=0, global_batch=33)
    whole = {order_digest(build_plan(manifest, seed=s, lanes=4), epoch=0, global_batch=130) for s in (0, 1)}
    assert len(whole) == 1


def test_id_covers_everything_that_changes_the_order(memory_manifest: Make) -> None:
    options: list[dict[str, int]] = [{}, {"seed": 1}, {"lanes": 8}, {"shuffle_rows": 9}, {"shuffle": False}]
    ids = {build_plan(memory_manifest([9, 9]), **option).id for option in options}
    ids.add(build_plan(memory_manifest([9, 10])).id)
    assert len(ids) == 6
    assert build_plan(memory_manifest([9, 9])).id in ids


def test_spans_say_exactly_when_a_block_is_needed(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([40, 8, 90, 1, 61]), seed=2, lanes=3, shuffle_rows=16)
    for lane in range(plan.lanes):
        length = plan.lane_row(plan.num_rows, lane)
        block = plan.rows(1, 0, plan.num_rows, range(lane, lane + 1)).block
        spans = list(plan.spans(1, lane))
        assert [need for _, need, _ in spans] == sorted(need for _, need, _ in spans)
        for row in range(length):
            assert any(b == block[row] and need <= row < release for b, need, release in spans)


def test_plan_survives_pickling(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([40, 8]), seed=2, lanes=3)
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.id == plan.id
    assert walk(copy, 1, 5) == walk(plan, 1, 5)


def test_a_batch_costs_its_rows_not_the_data(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest(np.full(100_000, 100_000)), seed=2)
    block, row = plan.batch(5, plan.num_rows - 8192, 8192)
    assert len(block) == 8192
    assert len(set(zip(block.tolist(), row.tolist(), strict=True))) == 8192


@pytest.mark.parametrize(
    ("option", "value"),
    [("seed", -1), ("seed", 1.5), ("seed", True), ("seed", None), ("lanes", 0), ("shuffle_rows", 0), ("lanes", "4")],
)
def test_impossible_options_are_named(memory_manifest: Make, option: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=f"{option}="):
        build_plan(memory_manifest([5]), **{option: value})


def test_refusals_say_what_to_do(memory_manifest: Make) -> None:
    plan = build_plan(memory_manifest([100]), lanes=4)
    with pytest.raises(TooManyRanks, match=r"5 ranks cannot share 4 lanes\. Run at most 4 .* lanes=8 \("):
        plan.batch(0, 0, 8, World(size=5))
    chosen = build_plan(memory_manifest(np.full(3000, 10)))
    with pytest.raises(TooManyRanks, match=r"65 ranks .* 64 lanes, the default for 3000 row groups .* lanes=128"):
        chosen.batch(0, 0, 80, World(size=65))
    with pytest.raises(InvalidOption, match="global_batch=0"):
        plan.num_batches(0)
    with pytest.raises(InvalidOption, match="position=100: .* from 0 to 99"):
        plan.batch(0, 100, 8)
    with pytest.raises(InvalidOption, match="epoch=-1"):
        plan.batch(-1, 0, 8)
    with pytest.raises(InvalidOption, match="pad.*balance"):
        plan.num_batches(8, last="pad")
