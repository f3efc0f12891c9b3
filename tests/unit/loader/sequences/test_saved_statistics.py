"""Statistics in checkpoints: saved with the run, and a resume on values of other statistics is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.loader.sequences.conftest import random_series, write_series

import forebay as fb
from forebay.checkpoint.checkpoint import Checkpoint
from forebay.errors import CursorMismatch
from forebay.train.state.epoch_totals import EpochFacts
from forebay.train.state.snapshot import Snapshot


def data_of(folder: Path, **options: Any) -> fb.Data:
    data = folder / "data"
    rng = np.random.default_rng(3)
    manifest = fb.scan(str(data)) if data.exists() else write_series(data, random_series(rng), "entity", rng)
    options = {"past": fb.Past(["load"], steps=4), "scale": "standard"} | options
    part = fb.Sequences(manifest, entity="meter", time="ts", **options).split(fractions=(0.7,))[0]
    return fb.Data(plan=fb.build_plan(part), transform=part.transform, global_batch=8)


def saved(data: fb.Data) -> Checkpoint:
    snapshot = Snapshot(
        step=3, cursor=data.start, objects={}, rng=(), rows=0, facts=EpochFacts(), ended=(), statistics=data.statistics
    )
    return snapshot.to_checkpoint(fb.World())


def test_a_checkpoint_keeps_them(tmp_path: Path) -> None:
    data = data_of(tmp_path)
    found = Snapshot.from_checkpoint(saved(data)).statistics
    assert found["columns"]["load"]["mean"] == pytest.approx(0, abs=0.5)
    assert (found["scale"], found["fill"]) == ("standard", "forward")
    data_of(tmp_path).validate_statistics(found, step=3)


@pytest.mark.parametrize("options", [{"scale": "minmax"}, {"fill": "both"}, {"scale": None, "fill": None}])
def test_others_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    found = Snapshot.from_checkpoint(saved(data_of(tmp_path))).statistics
    other = data_of(tmp_path, **options)
    assert other.plan.id == data_of(tmp_path).plan.id, "the order does not depend on them"
    with pytest.raises(CursorMismatch, match="step 3 was trained on values scaled or filled by other statistics"):
        other.validate_statistics(found, step=3)


def test_checkpoints_of_rows_hold_none(tmp_path: Path) -> None:
    data_of(tmp_path)
    plan = fb.build_plan(fb.scan(str(tmp_path / "data")))
    data = fb.Data(plan=plan, transform=fb.Transform(x=fb.Dense(["load"])), global_batch=8)
    (state,) = saved(data).shards.values()
    assert "statistics" not in state
    data.validate_statistics({}, step=3)
