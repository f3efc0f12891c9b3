from __future__ import annotations

import pytest

from forebay.errors import InvalidOption
from forebay.train.tables.optimizers import RowSGD
from forebay.train.tables.options import Tables
from forebay.train.tables.placement import LinkSpeed, TableDemand, cost_of, costs_of, reason_of


def test_bytes_are_those_of_the_exchange() -> None:
    demand = TableDemand(rows=10_000_000, dim=16, unique=41_320, world_size=2)
    assert cost_of("rows", demand).sent_bytes == 41_320 * (4 + 2 * 64) / 2
    assert cost_of("replicate", demand).sent_bytes == 8 * 10_000_000 * 16 / 2
    half = TableDemand(rows=10_000_000, dim=16, unique=41_320, world_size=2, wire="bfloat16")
    assert cost_of("rows", half).sent_bytes == 41_320 * (4 + 64) / 2


def test_large_tables_are_sharded_and_small_ones_replicated() -> None:
    large = TableDemand(rows=10_000_000, dim=16, unique=41_320, world_size=2)
    small = TableDemand(rows=4_096, dim=16, unique=3_000, world_size=2)
    assert costs_of(large)[0].placement == "rows"
    assert costs_of(small)[0].placement == "replicate"
    assert reason_of(small, costs_of(small)).startswith("replicate: 3,000 unique rows a rank and step, 256 KiB")


def test_a_world_of_one_sends_nothing() -> None:
    demand = TableDemand(rows=100, dim=4, unique=50, world_size=1)
    assert [cost.sent_bytes for cost in costs_of(demand)] == [0, 0, 0]


def test_a_slow_link_weighs_bytes() -> None:
    demand = TableDemand(rows=4_096, dim=16, unique=500, world_size=2)
    assert costs_of(demand)[0].placement == "replicate"
    assert costs_of(demand, LinkSpeed.of(100))[0].placement == "rows"
    with pytest.raises(InvalidOption, match="link_mbit=0: give the Mbit/s"):
        Tables(RowSGD(lr=1.0), link_mbit=0)


def test_open_tables_are_asked_by_id_and_have_one_placement() -> None:
    demand = TableDemand(rows=4_096, dim=16, unique=500, world_size=2, is_open=True)
    (cost,) = costs_of(demand)
    assert (cost.placement, cost.sent_bytes) == ("rows", 500 * (16 + 2 * 64) / 2)
