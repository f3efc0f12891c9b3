"""The shipped job that prepares its data with Ray Data, and trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import forebay as fb
from forebay.data.manifest.prepared import list_prepared
from forebay.data.parquet.reading import RowGroupReader
from forebay.training.driver.driver import named_driver
from forebay.training.job.recipe import call_recipe, load_recipe

ROOT = Path(__file__).parents[4]
CENSUS = ROOT.parent / "shared" / "data" / "adult.data"
needs_census = pytest.mark.skipif(
    not CENSUS.exists(), reason="the UCI Adult data is not beside the project (../shared/data)"
)


def made_job(name: str, folder: Path, csv: Path, **options: Any) -> fb.Job:
    given = {"csv": str(csv), "cache": str(folder / "cache"), "storage": str(folder / "runs"), "name": name}
    made = call_recipe(load_recipe(str(ROOT / "jobs" / f"{name}.py")), given | options)
    assert isinstance(made, fb.Job)
    return made


@needs_census
def test_it_joins_what_pandas_joins_and_prepares_once(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv = tmp_path / "adult.data"
    csv.write_text("".join(CENSUS.open().readlines()[:3000]))
    first = made_job("prepare_and_train", tmp_path, csv)
    ((_, prepared),) = list_prepared(str(tmp_path / "runs" / "prepared"))
    assert prepared is not None and first.held_out is not None
    assert prepared.rows == 3000 == first.data.plan.num_rows + first.held_out.plan.num_rows
    reader = RowGroupReader(prepared.manifest)
    found = pd.concat([reader.read(index).to_pandas() for index in range(len(reader.manifest))], ignore_index=True)
    usual = found.groupby("occupation")["hours_per_week"]
    expected = usual.transform("mean").fillna(0.0)
    assert found["person"].tolist() == list(range(3000)) and found["occupation"].isna().any()
    np.testing.assert_allclose(found["job_hours"], expected, rtol=1e-12)
    assert prepared.statistics["job_hours"].mean == pytest.approx(expected.mean())
    monkeypatch.setattr("forebay.data.preparation.ray_data._build", None)
    assert made_job("prepare_and_train", tmp_path, csv).data.plan.id == first.data.plan.id


@needs_census
@pytest.mark.variation
def test_it_reaches_the_auc_of_the_job_without_preparation(ray_session: None, tmp_path: Path) -> None:
    aucs = {}
    for name in ("train_tabular", "prepare_and_train"):
        made = made_job(name, tmp_path, CENSUS, epochs=5)
        assert made.held_out is not None and made.held_out.plan.num_rows == 6449
        aucs[name] = fb.run(made, named_driver("local")).epochs[-1].metrics["auc"]
    assert aucs["prepare_and_train"] == pytest.approx(aucs["train_tabular"], abs=0.005)
