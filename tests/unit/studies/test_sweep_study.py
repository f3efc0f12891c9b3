from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from forebay.testing.data.click_log import write_click_log
from forebay.training.driver.driver import run

STUDIES = Path(__file__).parents[3] / "studies"


# Imported once for the module: importing Ray sets a variable, which a test may not do.
@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STUDIES)
        yield importlib.import_module("sweep_study")


@pytest.fixture(scope="module")
def report(study: ModuleType) -> ModuleType:
    return importlib.import_module(study.write_report.__module__)


def test_every_epoch_of_a_trial_is_in_the_ledger(study: ModuleType, tmp_path: Path) -> None:
    log = write_click_log(tmp_path / "log", rows=6_000, files=2, row_groups_per_file=3)
    options = {"cache": str(tmp_path / "cache"), "storage": str(tmp_path / "runs"), "name": "trial"}
    result = run(study.job(str(log.path), epochs=2, **options), "local", study.ledger(str(tmp_path / "ledger")))
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert lines == [{"run": "trial", "epoch": epoch.epoch + 1, **scores(epoch.metrics)} for epoch in result.epochs]
    assert lines[1]["auc"] != lines[1]["test_auc"] and min(lines[1]["auc"], lines[1]["test_auc"]) > 0.55


def scores(metrics: Any) -> dict[str, float]:
    return {name: metrics[name] for name in ("auc", "test_auc")}


def test_the_model_is_chosen_by_one_half_and_told_by_the_other(report: ModuleType) -> None:
    swept = {"epochs": [[0.6, 0.61], [None, None], [0.8, 0.7], [0.7, 0.9], [0.85, 0.75]]}
    assert report.best_test(swept, 1) == 0.61
    assert report.best_test(swept, 4) == 0.7, "not the best on the half that is told"
    assert report.best_test(swept, 9) == 0.75


def test_what_was_written_below_the_figures_stays(report: ModuleType, study: ModuleType, tmp_path: Path) -> None:
    found = study._found(tmp_path / "none.json", 0.8)
    for method, seed, test in (("random", 0, 0.7), ("random", 1, 0.72), ("pbt", 0, 0.74), ("pbt", 1, 0.71)):
        facts = {"method": method, "seed": seed, "seconds": 9.0, "trials": 8, "branches": 0, "best_config": {}}
        found["sweeps"].append({**facts, "epochs": [[0.6, 0.5], [0.7, test]]})
    report.write_report(found, tmp_path)
    document = tmp_path / "sweeps.md"
    document.write_text(document.read_text() + "## Reading\nIt depends.\n")
    report.write_report(found, tmp_path)
    text = document.read_text()
    assert text.endswith("## Reading\nIt depends.\n") and "ASHA |" not in text
    assert "| PBT | 0.7250 +- 0.0212 | +0.0150 +- 0.0354 | 1 of 2 seeds | 8 | 0 | 2 | 9 |" in text
    assert (tmp_path / "sweeps.png").stat().st_size > 10_000
