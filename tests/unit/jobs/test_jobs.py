"""The shipped jobs, as a user runs them, without Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.app import main
from forebay.testing.data.click_log import write_click_log

ROOT = Path(__file__).parents[3]
CENSUS = ROOT.parent / "shared" / "data" / "adult.data"
ETTH1 = ROOT.parent / "shared" / "data" / "ETTh1.csv"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def call(job: str, **parameters: object) -> Any:
        monkeypatch.chdir(tmp_path)
        words = [f"{name}={value}" for name, value in ({"cache": "cache", "storage": "runs"} | parameters).items()]
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["run", "--driver", "local", str(ROOT / "jobs" / job), *words, "--json"])
        said = capsys.readouterr()
        assert not ended.value.code, said.err
        return json.loads(said.out)

    return call


@pytest.mark.skipif(not CENSUS.exists(), reason="the UCI Adult data is not beside the project (../shared/data)")
@pytest.mark.parametrize("ids", ["vocabulary", pytest.param("hash", marks=pytest.mark.variation)])
def test_census_reaches_its_auc(run: Callable[..., Any], ids: str) -> None:
    result = run("train_tabular.py", csv=CENSUS, ids=ids, epochs=5)
    assert result["epochs"][-1]["metrics"]["auc"] >= 0.90
    assert result["epochs"][-1]["rows"] + 6449 == 32_561


def test_click_model_learns_and_reads_the_source_once(run: Callable[..., Any]) -> None:
    result = run("train_ctr.py", rows=20_000, workers=1, global_batch=256, lr=0.01, buckets=4096)
    opens = [epoch["tally"].get("parquet_opens", 0) for epoch in result["epochs"]]
    assert opens[0] > 0
    assert opens[1:] == [0, 0]
    losses = [epoch["metrics"]["loss"] for epoch in result["epochs"]]
    assert losses == sorted(losses, reverse=True)
    assert result["epochs"][-1]["metrics"]["auc"] > 0.55


def test_click_model_takes_your_own_parquet(run: Callable[..., Any], tmp_path: Path) -> None:
    log = write_click_log(tmp_path / "mine", rows=2_000, files=2, row_groups_per_file=3)
    user = json.dumps(["f0", "c0"]).replace(" ", "")
    result = run("train_ctr.py", data=log.path, workers=1, global_batch=64, epochs=1, buckets=512, user=user)
    assert 0 < result["epochs"][0]["rows"] < 2_000


@pytest.mark.skipif(not ETTH1.exists(), reason="the ETT data is not beside the project (../shared/data)")
@pytest.mark.parametrize("model", ["nlinear", pytest.param("dlinear", marks=pytest.mark.variation)])
def test_forecasts_reach_the_published_error(run: Callable[..., Any], model: str) -> None:
    result = run("forecast.py", csv=ETTH1, model=model, epochs=4)
    assert result["epochs"][0]["rows"] == 8209
    assert result["epochs"][-1]["metrics"]["mse"] == pytest.approx(0.375, abs=0.01)
    # The first pass, before training, is the only one that reads the source.
    assert all(epoch["tally"].get("parquet_opens", 0) == 0 for epoch in result["epochs"])


def test_character_model_sees_each_window_once(run: Callable[..., Any], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    result = run("char_lm.py", text=text, steps=16, width=16, heads=2, layers=1, epochs=2, lr=0.01)
    windows = (8100 - 17 - 15) // 16 + 1
    assert [epoch["rows"] for epoch in result["epochs"]] == [windows, windows]
    losses = [epoch["metrics"]["validation_loss"] for epoch in result["epochs"]]
    assert losses[1] < losses[0] < 3.0
