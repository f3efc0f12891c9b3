"""A mixture keeps its shares, its end of an epoch, and the order of each of its datasets."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import forebay as fb
from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.mixture.mixture import Mixture
from forebay.data.plan.mixture.schedule import ramp
from forebay.data.plan.mixture.shares import WEIGHTS_SUM, integer_weights
from forebay.data.plan.order import Order, order_digest
from forebay.data.plan.plan import Plan, build_plan
from forebay.errors import CursorMismatch, InvalidOption

Make = Callable[..., Manifest]
Row = tuple[int, int]


def plan_of(make: Make, rows: int, seed: int = 3, **options: int) -> Plan:
    return build_plan(make([rows // 3, rows - rows // 3]), seed=seed, **{"lanes": 4, "shuffle_rows": 16} | options)


@pytest.fixture
def plans(memory_manifest: Make) -> dict[str, Plan]:
    sizes = {"web": 200, "code": 50, "books": 7}
    return {name: plan_of(memory_manifest, rows, seed=number) for number, (name, rows) in enumerate(sizes.items())}


WEIGHTS = {"web": 0.7, "code": 0.25, "books": 0.05}


def rows_of(mix: Order, epoch: int, start: int = 0, stop: int | None = None) -> list[Row]:
    stop = mix.num_rows if stop is None else stop
    _, block, row = mix.positioned_rows(epoch, start, stop, range(mix.lanes))
    return list(zip(block.tolist(), row.tolist(), strict=True))


def streams(mix: Mixture, rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of each dataset, with the blocks' numbers in it."""
    first = np.cumsum([0, *(len(manifest) for manifest in mix.manifests)])
    number = np.searchsorted(first, [block for block, _ in rows], side="right") - 1
    found: dict[str, list[Row]] = {name: [] for name in mix.names}
    for (block, row), each in zip(rows, number.tolist(), strict=True):
        found[mix.names[each]].append((block - int(first[each]), row))
    return found


def own_stream(plan: Plan, count: int) -> list[Row]:
    """First rows of the endless stream of a plan."""
    rows: list[Row] = []
    while len(rows) < count:
        rows += rows_of(plan, len(rows) // plan.num_rows)
    return rows[:count]


@pytest.mark.parametrize(
    "options", [{"until": "all"}, {"until": "first"}, {"until": "once"}, {"rows": 30}, {"rows": 1000}]
)
def test_each_data_set_keeps_its_own_order(plans: dict[str, Plan], options: dict[str, object]) -> None:
    mix = Mixture(plans, WEIGHTS, **options)  # type: ignore[arg-type]
    for name, rows in streams(mix, sum((rows_of(mix, epoch) for epoch in range(3)), [])).items():
        assert rows == own_stream(plans[name], len(rows))
        assert len(rows) == mix.counts(2, mix.num_rows)[name]


def test_once_gives_each_row_once_in_every_epoch(plans: dict[str, Plan]) -> None:
    mix = Mixture(plans, WEIGHTS, until="once")
    for epoch in range(3):
        rows = rows_of(mix, epoch)
        assert len(rows) == len(set(rows)) == mix.num_rows == 257


def test_all_ends_when_every_row_has_come(plans: dict[str, Plan]) -> None:
    mix = Mixture(plans, WEIGHTS)
    for name, rows in streams(mix, rows_of(mix, 0)).items():
        times = Counter(rows)
        assert len(times) == plans[name].num_rows
        assert max(times.values()) <= -(-len(rows) // plans[name].num_rows)
    last = streams(mix, rows_of(mix, 0)[:-1])
    assert any(len(set(rows)) < plans[name].num_rows for name, rows in last.items()), "not one row later"


def test_first_ends_before_a_row_repeats_and_epochs_go_on(plans: dict[str, Plan]) -> None:
    mix = Mixture({name: plans[name] for name in ("web", "code")}, {"web": 1, "code": 1}, until="first")
    rows = rows_of(mix, 0)
    assert len(rows) == len(set(rows))
    assert any(len(own) == plans[name].num_rows for name, own in streams(mix, rows).items())
    following = rows_of(mix, 1, stop=1)
    assert set(following) & set(rows), "the next row repeats one"
    web = streams(mix, rows + rows_of(mix, 1))["web"]
    assert len(web) == len(set(web)), "an epoch does not start over in a dataset that has rows left"


@pytest.mark.parametrize("lanes", [4, 16, 20])
def test_one_data_set_gives_the_batches_of_its_plan(memory_manifest: Make, lanes: int) -> None:
    plan = plan_of(memory_manifest, 323, lanes=lanes)
    mix = Mixture({"only": plan}, {"only": 1.0})
    assert mix.num_rows == plan.num_rows
    for epoch in range(3):
        assert rows_of(mix, epoch) == rows_of(plan, epoch)
        assert order_digest(mix, epoch=epoch, global_batch=10) == order_digest(plan, epoch=epoch, global_batch=10)
    for size in range(1, min(lanes, 16) + 1):
        for world in (fb.World(rank=rank, size=size) for rank in range(size)):
            for position in (0, 77, 320):
                own, mixed = (order.batch(1, position, 40, world) for order in (plan, mix))
                assert own.block.tolist() == mixed.block.tolist() and own.row.tolist() == mixed.row.tolist()


def test_golden_order(plans: dict[str, Plan]) -> None:
    mix = Mixture(plans, WEIGHTS)
    assert (mix.num_rows, mix.id[:16]) == (286, "3235e5651c48795b")
    assert rows_of(mix, 0, stop=6) == [(4, 48), (2, 7), (5, 28), (5, 76), (3, 8), (5, 85)]
    assert order_digest(mix, epoch=1, global_batch=16) == (
        "964d45e6da225d50a9d1b9bda936b60a9b84efb0b50c98868a19a6740cfbcb91"
    )


def test_weights_change_at_their_rows(plans: dict[str, Plan]) -> None:
    stages = [(0, {"web": 1.0}), (100, {"web": 1.0, "code": 1.0}), (330, {"code": 3.0, "books": 1.0})]
    mix = Mixture(plans, stages, rows=70)
    assert [mix.counts(*divmod(row, 70)) for row in (100, 330, 430)] == [
        {"books": 0, "code": 0, "web": 100},
        {"books": 0, "code": 115, "web": 215},
        {"books": 25, "code": 190, "web": 215},
    ]
    for name, rows in streams(mix, sum((rows_of(mix, epoch) for epoch in range(7)), [])).items():
        assert rows == own_stream(plans[name], len(rows))


@given(data=st.data(), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6), rows=st.integers(1, 200))
def test_counts_of_stages_are_those_of_counting_one_by_one(
    memory_manifest: Make, data: st.DataObject, sizes: list[int], rows: int
) -> None:
    names = [f"s{number}" for number in range(len(sizes))]
    plans = {name: plan_of(memory_manifest, size, lanes=2) for name, size in zip(names, sizes, strict=True)}
    weight = st.floats(1e-5, 1)
    stages = [
        (start, data.draw(st.dictionaries(st.sampled_from(names), weight, min_size=1)))
        for start in sorted({0, *data.draw(st.lists(st.integers(1, 150), max_size=4))})
    ]
    assume({name for _, weights in stages for name in weights} == set(names))
    mix = Mixture(plans, stages, rows=rows)
    before = dict.fromkeys(names, 0)
    for row in range(200):
        counts = mix.counts(row // rows, row % rows + 1)
        (grown,) = [name for name in names if counts[name] != before[name]]
        start, weights = [stage for stage in stages if stage[0] <= row][-1]
        at_start = mix.counts(start // rows, start % rows)
        for name, whole in integer_weights({name: weights[name] for name in names if name in weights}).items():
            share = at_start[name] + (row + 1 - start) * whole / WEIGHTS_SUM
            assert abs(counts[name] - share) < 2
        ((block, _),) = rows_of(mix, row // rows, row % rows, row % rows + 1)
        assert block // 2 == mix.names.index(grown)
        before = counts


def test_order_of_names_does_not_matter(plans: dict[str, Plan]) -> None:
    turned = Mixture(dict(reversed(plans.items())), dict(reversed(WEIGHTS.items())))
    assert turned.id == Mixture(plans, WEIGHTS).id
    assert turned.names == ("books", "code", "web")


def test_id_covers_everything_that_changes_the_order(plans: dict[str, Plan], memory_manifest: Make) -> None:
    other = plans | {"code": plan_of(memory_manifest, 50, seed=9)}
    mixes = [
        Mixture(plans, WEIGHTS),
        Mixture(other, WEIGHTS),
        Mixture(plans, WEIGHTS | {"web": 0.6}),
        Mixture(plans, WEIGHTS, until="once"),
        Mixture(plans, WEIGHTS, rows=286),
        Mixture(plans, WEIGHTS, rows=287),
        Mixture(plans, [(0, WEIGHTS), (100, {"web": 1, "books": 1})], rows=287),
        Mixture(plans, [(0, WEIGHTS), (101, {"web": 1, "books": 1})], rows=287),
    ]
    assert len({mix.id for mix in mixes}) == len(mixes)
    assert Mixture(plans, {name: 20 * weight for name, weight in WEIGHTS.items()}).id == mixes[0].id


def test_ramp_goes_from_one_to_the_other(plans: dict[str, Plan]) -> None:
    stages = ramp({"web": 1.0}, WEIGHTS, 50, 250, steps=10)
    mix = Mixture(plans, stages, rows=1000)
    shares = [mix.counts(0, row + 20)["web"] - mix.counts(0, row)["web"] for row in range(0, 270, 20)]
    assert all(later <= earlier + 1 for earlier, later in pairwise(shares))
    assert shares[0] == 20 and shares[-1] == 14
    with pytest.raises(InvalidOption, match="steps=50: .*from 1 to 20"):
        ramp({"web": 1}, {"code": 1}, 0, 20)
    with pytest.raises(InvalidOption, match="no rows"):
        ramp({"web": 1}, {"code": 1}, 20, 20, steps=1)
    with pytest.raises(InvalidOption, match="Give a stop after the start"):
        ramp({"web": 1}, {"code": 1}, 3000, 1000)


def test_a_continued_mixture_has_the_old_rows_and_then_other_weights(
    plans: dict[str, Plan], memory_manifest: Make
) -> None:
    old = Mixture({name: plans[name] for name in ("web", "code")}, {"web": 3, "code": 1}, rows=60)
    cursor = fb.Cursor(plan_id=old.id, epoch=2, position=17, global_batch=8)
    new = Mixture.continue_from(old, cursor, {name: plans[name] for name in ("web", "books")}, {"web": 1, "books": 1})
    assert new.num_rows == old.num_rows and new.id != old.id
    before = sum((rows_of(old, epoch) for epoch in range(3)), [])[:137]
    after = sum((rows_of(new, epoch) for epoch in range(5)), [])
    web, code = streams(old, before)["web"], streams(old, before)["code"]
    assert streams(new, after[:137]) == {"books": [], "code": code, "web": web}
    assert streams(new, after)["web"] == own_stream(plans["web"], len(streams(new, after)["web"]))
    assert {name: len(rows) for name, rows in streams(new, after[137:]).items()} == {"books": 82, "code": 0, "web": 81}
    assert new.accepts(cursor)
    assert not new.accepts(fb.Cursor(plan_id=old.id, epoch=2, position=18, global_batch=8)), "there, weights differ"
    again = Mixture.continue_from(
        new, fb.Cursor(plan_id=new.id, epoch=4, position=0, global_batch=8), {"code": plans["code"]}, {"code": 1}
    )
    assert again.accepts(cursor)
    assert set(streams(again, rows_of(again, 4))["code"]) and not streams(again, rows_of(again, 4))["web"]


def test_a_data_set_that_never_came_can_be_left_out_of_a_continuation(plans: dict[str, Plan]) -> None:
    stages = [(0, {"web": 1.0}), (50, {"web": 1.0, "code": 1.0}), (2000, {"books": 1.0})]
    old = Mixture(plans, stages, rows=60)
    cursor = fb.Cursor(plan_id=old.id, epoch=1, position=10, global_batch=8)
    kept = {name: plans[name] for name in ("web", "code")}
    new = Mixture.continue_from(old, cursor, kept, {"web": 1, "code": 3})
    assert new.names == ("code", "web")
    for epoch, stop in ((0, 60), (1, 10)):
        before, after = (streams(mix, rows_of(mix, epoch, stop=stop)) for mix in (old, new))
        assert before == after | {"books": []}
    with pytest.raises(InvalidOption, match=r"leaves out \['books'\]"):
        Mixture.continue_from(old, cursor, plans, {"web": 1, "code": 3})


def test_a_mixture_does_not_change_with_what_it_was_given(plans: dict[str, Plan]) -> None:
    weights = dict(WEIGHTS)
    stages = [(0, {"web": 1.0}), (100, weights)]
    mixes = Mixture(plans, weights, rows=np.int64(300)), Mixture(plans, stages, rows=300)  # type: ignore[arg-type]
    weights["web"] = 7.0
    stages.append((200, {"code": 1.0}))
    for mix in mixes:
        assert pickle.loads(pickle.dumps(mix)).id == mix.id


def test_any_mapping_holds_weights(plans: dict[str, Plan]) -> None:
    """One that cannot be pickled, too: the mixture keeps a copy."""
    mix = Mixture(plans, MappingProxyType(WEIGHTS), rows=30)
    staged = Mixture(plans, [(0, MappingProxyType(WEIGHTS))], rows=30)
    assert pickle.loads(pickle.dumps(mix)).id == pickle.loads(pickle.dumps(staged)).id == mix.id


def test_impossible_continuations_are_refused(plans: dict[str, Plan], memory_manifest: Make) -> None:
    old = Mixture(plans, WEIGHTS, rows=60)
    cursor = fb.Cursor(plan_id=old.id, epoch=0, position=30, global_batch=8)
    with pytest.raises(CursorMismatch, match="mixture of that cursor"):
        Mixture.continue_from(Mixture(plans, WEIGHTS), cursor, plans, WEIGHTS)
    with pytest.raises(InvalidOption, match=r"'code' has plan .*a new name"):
        Mixture.continue_from(old, cursor, plans | {"code": plan_of(memory_manifest, 50, seed=9)}, WEIGHTS)
    with pytest.raises(InvalidOption, match="starts at row 0, and the cursor is at row 30"):
        Mixture.continue_from(old, cursor, plans, [(0, WEIGHTS)])
    once = Mixture(plans, WEIGHTS, until="once")
    with pytest.raises(InvalidOption, match="starts over in each epoch"):
        Mixture.continue_from(once, fb.Cursor(plan_id=once.id, epoch=0, position=9, global_batch=8), plans, WEIGHTS)


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ({}, {}, r"stage \(0, \{\}\)"),
        ({"web": 1}, {}, r"leaves out \['books', 'code'\]"),
        (WEIGHTS | {"news": 1}, {}, r"names \['news'\]"),
        (WEIGHTS | {"web": 0}, {}, "'web' the weight 0"),
        (WEIGHTS | {"web": float("nan")}, {}, "'web' the weight nan"),
        (WEIGHTS | {"web": -1}, {}, "'web' the weight -1"),
        ([(5, WEIGHTS)], {}, r"rows \[5\].*first of them 0"),
        ([(0, WEIGHTS), (0, WEIGHTS)], {}, r"rows \[0, 0\].*ascending"),
        ([(0, WEIGHTS), (-3, WEIGHTS)], {}, "start of a stage=-3"),
        ([(0, WEIGHTS, 1)], {}, r"as \(first row"),
        ([], {}, "or stages"),
        ("even", {}, "or stages"),
        (WEIGHTS, {"until": "never"}, "until='never' is unknown.*'once'"),
        (WEIGHTS, {"rows": 0}, "rows=0"),
        (WEIGHTS, {"until": "all", "rows": 5}, "both given"),
        ([(0, WEIGHTS), (9, WEIGHTS)], {"until": "once"}, "start the stages over"),
        ([(0, {"books": 1, "code": 1}), (20, {"web": 1})], {}, r"every row of \['code'\]"),
    ],
)
def test_impossible_mixtures_are_refused(
    plans: dict[str, Plan], weights: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        Mixture(plans, weights, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("epoch", "position"), [(-1, 0), (0, -1), (0, 258)])
def test_counts_of_a_position_that_does_not_exist_are_refused(
    plans: dict[str, Plan], epoch: int, position: int
) -> None:
    with pytest.raises(InvalidOption, match="(epoch|position)=.*must be a whole number"):
        Mixture(plans, until="once").counts(epoch, position)


def test_only_plans_of_one_data_set_can_be_mixed(plans: dict[str, Plan], memory_manifest: Make) -> None:
    for given_plans in ({}, {"web": memory_manifest([3])}, {"mix": Mixture(plans, WEIGHTS)}, {1: plans["web"]}, []):
        with pytest.raises(InvalidOption, match="Give"):
            Mixture(given_plans, {"web": 1})  # type: ignore[arg-type]


def test_a_data_set_without_rows_is_refused(memory_manifest: Make) -> None:
    with pytest.raises(InvalidOption, match="no rows.*leave it out"):
        build_plan(memory_manifest([0, 0]))


def test_ranks_read_about_equally_much(plans: dict[str, Plan], memory_manifest: Make) -> None:
    lanes = {"web": 16, "code": 64, "books": 24}
    mix = Mixture({name: plan_of(memory_manifest, 4000, lanes=count) for name, count in lanes.items()}, WEIGHTS)
    for size in (2, 3, 5, 16):
        for start in (0, 512, 3000):
            worlds = [fb.World(rank=rank, size=size) for rank in range(size)]
            parts = [len(mix.positioned_rows(0, start, start + 512, mix.owned_lanes(world)).row) for world in worlds]
            assert max(parts) - min(parts) <= 512 // 16 + 16, (size, start, parts)
