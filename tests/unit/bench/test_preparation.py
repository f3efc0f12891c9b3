"""The preparation bench: the pipeline's transform against a join by hand, the log of an epoch, and the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Bench = Callable[[str], ModuleType]


def test_every_click_gets_its_user_and_its_item(bench: Bench, tmp_path: Path) -> None:
    data, pipeline = (bench(f"preparation.{name}") for name in ("data", "pipeline"))
    folder = data.make_tables(tmp_path, 2000)
    clicks = pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("clicks-*.parquet")))
    assert sorted(clicks["row"].to_pylist()) == list(range(2000))
    users = pq.read_table(folder / data.USERS_FILE)
    counted = clicks.group_by("item").aggregate([("cents", "count"), ("cents", "sum")])
    items = counted.rename_columns(["item", "clicks", "cents"])
    log = str(tmp_path / "log")
    made = pipeline.transformed(clicks, users, items, log).to_pandas()
    assert bench("notes").read_notes(log) == [{"transformed": 2000}]
    frame = clicks.to_pandas()
    joined = frame.merge(users.to_pandas(), on="user", how="left", sort=False)
    assert made["age"].tolist() == joined["age"].tolist()
    mean = frame.groupby("item")["cents"].transform("mean")
    np.testing.assert_allclose(made["price"], frame["cents"] / mean, rtol=1e-6)
    assert made["x00"].between(0, 1).all()


def test_an_epoch_checks_its_rows(bench: Bench, tmp_path: Path) -> None:
    work, log = bench("preparation.work"), str(tmp_path / "log")
    epoch = work.EpochLog(log, 5)
    for batch in epoch.timed(iter([np.array([0, 1]), np.array([1, 3])])):
        epoch.add(batch)
    epoch.end_epoch()
    (facts,) = bench("notes").read_notes(log)
    assert (facts["epoch"]["rows"], facts["epoch"]["lost"], facts["epoch"]["repeated"]) == (4, 2, 1)
    assert 0 <= facts["epoch"]["wait_s"] <= facts["epoch"]["seconds"]


def _run(prepare_s: float, later_s: float) -> dict[str, Any]:
    facts = {"version": "1", "keeps": "k", "shuffled": "no", "resumes": "r", "note": ""}
    epoch = {"wait_s": 0.5, "rows": 10, "lost": 0, "repeated": 0}
    run = {"facts": facts, "wall_s": 20.0, "cpu_s": 30.0, "prepare_s": prepare_s, "kept_bytes": 7}
    epochs = [epoch | {"seconds": seconds} for seconds in (3.0, later_s, later_s)]
    return run | {"sent_bytes": 2_000_000, "transformed": 10, "epochs": epochs}


def test_report_compares_runs_of_one_round(bench: Bench) -> None:
    report = bench("preparation.report")
    results = [
        *(
            {"name": report.OURS, "ours": True, "repeat": turn, "first": _run(10.0, 1.0), "second": _run(0.1, 1.0)}
            for turn in range(2)
        ),
        *(
            {"name": report.PEER, "ours": False, "repeat": turn, "first": _run(8.0, 4.0), "second": _run(8.0, 4.0)}
            for turn in range(2)
        ),
        {"name": "another", "ours": False, "repeat": 0, "error": "no memory"},
    ]
    document = {
        "machine": {"cpu": "c", "cores": 2, "memory_bytes": 1 << 30, "system": "s", "load_before": 0.5},
        "options": {"rows": 10, "repeats": 2, "epochs": 3},
        "data_bytes": 1_000_000,
        "took_s": 60.0,
        "results": results,
    }
    text = report.report(document)
    assert "| preparation in the second run, share of the first | <= 2% | 1.00% | met |" in text
    assert "times Forebay's | >= 5 | 4.0 | **missed** |" in text
    assert f"| {report.OURS} | second | 20.0 | 30 | 0.10 | 2.00 | 1.00 | 0 / 0 in 6 epochs |" in text
    assert f"| {report.PEER} | first | 3.00, waiting 0.50 | 4.00, waiting 0.50 | 4.00, waiting 0.50 |" in text
    assert "- another: no memory" in text
    assert "failed: no memory" in report.summary(results[-1])
