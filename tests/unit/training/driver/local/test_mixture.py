"""A run over a mixture: resized after a kill, and continued with other weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forebay.data.plan.cursor import Cursor
from forebay.data.plan.mixture.mixture import Mixture
from forebay.errors import CursorMismatch
from forebay.events import EpochEnded, Event
from forebay.testing.drivers.bench import DriverBench
from forebay.training.driver.driver import run
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control

pytestmark = pytest.mark.usefixtures("kept_fork_server")


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path, "mixture")


def test_a_killed_and_resized_run_trains_every_row_once(bench: DriverBench) -> None:
    def grow(event: Event, control: Control) -> None:
        if isinstance(event, EpochEnded):
            control.resize(3)

    job = bench.job("killed", at_step=4, event="kill", epochs=3, elastic=Elastic(min_workers=1, max_workers=3, start=2))
    result = run(job, "local", [grow])
    assert result.is_finished and result.failures == 1
    bench.assert_every_row_once(result)
    bench.assert_like_undisturbed(result)
    assert bench.trained("killed") == bench.planned(3)


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
    assert bench.trained("changed") == bench.planned(2, new)
    with pytest.raises(CursorMismatch, match="made with plan"):
        run(first, "local")
