"""Defaults of a plan: number of lanes, and rows that are shuffled together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.lanes import owned_order
from forebay.data.plan.plan import build_plan, choose_lanes, choose_shuffle_rows

MIB = 1 << 20


@pytest.mark.parametrize(
    ("groups", "group_bytes", "lanes"),
    [
        (1, 0, 16),
        (1, 1, 16),
        (100, MIB, 16),
        (1023, MIB, 16),
        (1024, MIB, 32),
        (10_000, MIB, 256),
        (32_768, MIB, 1024),
        (1_000_000, 16 * MIB, 1024),
        (1_000_000, 17 * MIB, 512),
        (1_000_000, 128 * MIB, 128),
        (1_000_000, 4096 * MIB, 16),
    ],
)
def test_lanes_follow_from_the_row_groups(groups: int, group_bytes: int, lanes: int) -> None:
    assert choose_lanes(np.full(groups, group_bytes)) == lanes


def test_all_lanes_together_shuffle_as_many_rows() -> None:
    assert [choose_shuffle_rows(lanes) for lanes in (1, 16, 32, 256)] == [65_536, 65_536, 32_768, 4096]
    assert choose_shuffle_rows(1024) == choose_shuffle_rows(1 << 20) == 4096


def test_a_plan_takes_both_by_default(memory_manifest: Callable[..., Manifest]) -> None:
    plan = build_plan(memory_manifest(np.full(5000, 10)))
    assert (plan.lanes, plan.shuffle_rows) == (128, 8192)
    assert plan.id == build_plan(plan.manifest, lanes=128).id == build_plan(plan.manifest, shuffle_rows=8192).id
    assert (build_plan(plan.manifest, lanes=4).lanes, build_plan(plan.manifest, lanes=4).shuffle_rows) == (4, 65_536)


@pytest.mark.parametrize("lanes", [1, 2, 3, 7, 16, 1000])
def test_ranks_own_every_lane_once(lanes: int) -> None:
    assert sorted(owned_order(lanes).tolist()) == list(range(lanes))
