"""A run over a mixture: killed and resized, it trains the planned rows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forebay.driver.driver import run
from forebay.errors import CursorMismatch
from forebay.events import EpochEnded, Event
from forebay.job.elastic import Elastic
from forebay.plan.cursor import Cursor
from forebay.plan.mixture.mixture import Mixture
from forebay.plan.order import Order
from forebay.runs.control import Control
from forebay.testing.drivers.bench import DriverBench


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path, is_mixed=True)


def planned(plan: Order, epochs: int, global_batch: int = 16) -> dict[int, list[int]]:
    """Ids of each step, sorted. Ids count rows in the order of blocks."""
    first, steps = np.cumsum(plan.block_rows) - plan.block_rows, dict[int, list[int]]()
    for epoch in range(epochs):
        position = 0
        while size := plan.batch_size(position, global_batch):
            block, row = plan.batch(epoch, position, global_batch)
            steps[len(steps)] = sorted((first[block] + row).tolist())
            position += size
    return steps


def trained(bench: DriverBench, name: str) -> dict[int, list[int]]:
    """Ids of each step over all ranks, sorted."""
    steps: defaultdict[int, list[int]] = defaultdict(list)
    for key, ids in bench.rows(name).items():
        steps[int(key.partition("-")[0])] += ids
    return {step: sorted(ids) for step, ids in steps.items()}


def test_a_killed_and_resized_run_trains_every_row_once(bench: DriverBench) -> None:
    def grow(event: Event, control: Control) -> None:
        if isinstance(event, EpochEnded):
            control.resize(3)

    job = bench.job("killed", at_step=4, event="kill", epochs=3, elastic=Elastic(min_workers=1, max_workers=3, start=2))
    result = run(job, "local", [grow])
    assert result.is_finished and result.failures == 1
    bench.assert_every_row_once(result)
    bench.assert_like_undisturbed(result)
    assert trained(bench, "killed") == planned(job.data.plan, 3)


def test_a_run_goes_on_with_other_weights_and_another_data_set(bench: DriverBench) -> None:
    mixed = bench.job("changed").data
    plans = dict(zip(mixed.plan.names, mixed.plan.plans, strict=True))
    old = Mixture({"first": plans["first"]}, {"first": 1.0}, rows=70)
    first = bench.job("changed", data=replace(mixed, plan=old), epochs=1)
    assert run(first, "local").is_finished
    cursor = Cursor(plan_id=old.id, epoch=1, position=0, global_batch=16)
    new = Mixture.continue_from(old, cursor, plans, {"first": 1.0, "second": 1.0})
    result = run(bench.job("changed", data=replace(mixed, plan=new)), "local")
    assert result.is_finished and result.plan_id == new.id
    assert trained(bench, "changed") == planned(new, 2)
    with pytest.raises(CursorMismatch, match="made with plan"):
        run(first, "local")
