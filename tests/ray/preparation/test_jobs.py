"""The shipped job that prepares its data with Ray Data, and trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.driver.driver import named_driver
from forebay.job.recipe import call_recipe, load_recipe

ROOT = Path(__file__).parents[3]
CENSUS = ROOT.parent / "shared" / "data" / "adult.data"


@pytest.mark.skipif(not CENSUS.exists(), reason="the UCI Adult data is not beside the project (../shared/data)")
def test_it_reaches_the_auc_of_the_job_without_preparation(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"csv": str(CENSUS), "cache": str(tmp_path / "cache"), "epochs": 5}
    aucs = {}
    for name in ("train_tabular", "prepare_and_train"):
        made = call_recipe(load_recipe(str(ROOT / "jobs" / f"{name}.py")), given | {"name": name})
        assert made.held_out is not None
        assert made.held_out.plan.manifest.num_rows == 6449
        aucs[name] = fb.run(made, named_driver("local")).epochs[-1].metrics["auc"]
    assert aucs["prepare_and_train"] == pytest.approx(aucs["train_tabular"], abs=0.005)
    (folder,) = (tmp_path / "runs" / "prepared").iterdir()
    prepared = fb.load_prepared(str(folder))
    assert prepared.rows == 32_561
    assert prepared.statistics["job_hours"].nulls == 0
    assert len(prepared.vocabularies["occupation"]) == 14
