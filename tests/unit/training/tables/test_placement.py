from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidOption
from forebay.training.tables.optimizers import RowSGD
from forebay.training.tables.options import Tables
from forebay.training.tables.placement import LinkSpeed, TableDemand, cost_of, costs_of, reason_of


def test_bytes_are_those_of_the_exchange() -> None:
    demand = TableDemand(rows=10_000_000, dim=16, unique=41_320, world_size=2)
    assert cost_of("rows", demand).sent_bytes == 41_320 * (4 + 2 * 64) / 2
    assert cost_of("replicate", demand).sent_bytes == 8 * 10_000_000 * 16 / 2
    half = TableDemand(rows=10_000_000, dim=16, unique=41_320, world_size=2, wire="bfloat16")
    assert cost_of("rows", half).sent_bytes == 41_320 * (4 + 64) / 2


def test_large_tables_are_sharded_and_small_ones_replicated() -> None:
    large = TableDemand(rows=10_000_000, dim=16, unique=41_320, world_size=2)
    small = TableDemand(rows=4_096, dim=16, unique=3_000, world_size=2)
    assert costs_of([large])[0][0].placement == "rows"
    assert costs_of([small])[0][0].placement == "replicate"
    assert reason_of(small, costs_of([small])[0]).startswith("replicate: 3,000 unique rows a rank and step, 256 KiB")


def test_a_world_of_one_sends_nothing() -> None:
    demand = TableDemand(rows=100, dim=4, unique=50, world_size=1)
    assert [cost.sent_bytes for cost in costs_of([demand])[0]] == [0, 0, 0]


def test_a_slow_link_weighs_bytes() -> None:
    demand = TableDemand(rows=4_096, dim=16, unique=500, world_size=2)
    assert costs_of([demand])[0][0].placement == "replicate"
    assert costs_of([demand], LinkSpeed.of(100))[0][0].placement == "rows"
    with pytest.raises(InvalidOption, match="link_mbit=0: give the Mbit/s"):
        Tables(RowSGD(lr=1.0), link_mbit=0)


def test_open_tables_are_asked_by_id_and_have_one_placement() -> None:
    demand = TableDemand(rows=4_096, dim=16, unique=500, world_size=2, is_open=True)
    ((cost,),) = costs_of([demand])
    assert (cost.placement, cost.sent_bytes) == ("rows", 500 * (16 + 2 * 64) / 2)


def small_tables(count: int, *, own_calls: float) -> list[TableDemand]:
    return [TableDemand(rows=4_096, dim=16, unique=300, world_size=2, own_calls=own_calls) for _ in range(count)]


def placements_of(demands: list[TableDemand], link: LinkSpeed | None = None) -> list[str]:
    return [costs[0].placement for costs in costs_of(demands, link)]


def test_tables_that_are_looked_up_together_share_the_messages_of_an_exchange() -> None:
    assert placements_of(small_tables(8, own_calls=1.0)) == ["replicate"] * 8
    assert placements_of(small_tables(8, own_calls=1 / 8)) == ["rows"] * 8
    costs = costs_of(small_tables(8, own_calls=1 / 8))[0]
    assert "with its share of the messages" in reason_of(small_tables(8, own_calls=1 / 8)[0], costs)


def test_a_message_that_only_one_table_needs_is_charged_to_it_alone() -> None:
    *others, one = small_tables(8, own_calls=1 / 8)
    replicated = [replace(each, fixed="replicate") for each in others]
    assert placements_of([*replicated, one]) == ["replicate"] * 8
    assert placements_of([*replicated, replace(one, rows=1_000_000)])[-1] == "rows"


def test_messages_that_a_named_placement_needs_anyway_cost_nothing() -> None:
    tiny = small_tables(1, own_calls=0.5)
    named = replace(tiny[0], fixed="rows")
    assert placements_of([*tiny, replace(tiny[0], fixed="replicate")]) == ["replicate", "replicate"]
    assert placements_of([*tiny, named]) == ["rows", "rows"]
    assert placements_of([*tiny, replace(tiny[0], is_open=True)]) == ["rows", "rows"]


demands = st.builds(
    TableDemand,
    rows=st.sampled_from([10, 1000, 5000, 20_000, 1_000_000]),
    dim=st.sampled_from([4, 16]),
    unique=st.floats(1, 5000),
    world_size=st.just(3),
    fixed=st.sampled_from([None, None, None, "rows", "replicate"]),
    is_open=st.sampled_from([False, False, False, True]),
)


@given(st.lists(demands, min_size=1, max_size=5), st.booleans(), st.sampled_from([None, 100.0, 1000.0]))
def test_the_choice_is_the_cheapest_model(tables: list[TableDemand], is_shared: bool, mbit: float | None) -> None:
    """Oracle: all choices, each with the messages that it needs."""
    link = LinkSpeed.of(mbit)
    numbers = replace(link, message_s=0.0)
    tables = [replace(each, own_calls=1 / len(tables) if is_shared else 1.0) for each in tables]

    def model_s(choice: tuple[str, ...]) -> float:
        exchanged = sum(name != "replicate" for name in choice)
        lookups = min(exchanged, 1) if is_shared else exchanged
        needs_dense_sum = exchanged < len(choice) or any(each.is_open for each in tables)
        numbers_s = sum(cost_of(name, each, numbers).seconds for name, each in zip(choice, tables, strict=True))
        return numbers_s + (3 * lookups + min(exchanged, 1) + needs_dense_sum) * link.message_s

    chosen = model_s(tuple(placements_of(tables, link)))
    best = min(map(model_s, itertools.product(*(each.known for each in tables))), default=inf)
    assert chosen <= best * (1 + 1e-9)
