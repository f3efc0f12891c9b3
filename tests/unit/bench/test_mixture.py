"""The mixture bench at a tiny scale: its data, what it counts, Forebay's row, and the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Bench = Callable[[str], ModuleType]
ROWS = 70 * 64


@pytest.fixture
def request_of(bench: Bench, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    setting = bench("mixture.setting")
    data = setting.write_data(tmp_path / "data", ROWS)

    def make(state: Any = None) -> dict[str, Any]:
        given = setting.MixtureSetting(
            data=data, work=tmp_path / "work", converted=tmp_path / "converted", rows=ROWS, batch=64
        )
        paths = {name: str(value) for name, value in asdict(given).items() if isinstance(value, Path)}
        return {"system": "forebay_mixture", "setting": asdict(given) | paths, "state": state, "limit_s": 60}

    return make


def test_forebay_keeps_the_shares_and_resumes(bench: Bench, request_of: Callable[..., dict[str, Any]]) -> None:
    child, report = bench("mixture.child"), bench("mixture.report")
    whole = child.measure(request_of())
    assert whole["distance"] < 2 and whole["counted_rows"] == ROWS and whole["epoch_batches"] == 70
    for state, following in zip(whole["states"], whole["following"], strict=True):
        assert child.measure(request_of(state))["digests"] == following
    assert len(whole["following"][1]) == child.FOLLOWING
    results = [
        {"name": "Forebay"} | whole | {"resumed": [{"equal": 1.0, "error": ""}, {"equal": None, "error": "lost"}]},
        {"name": "other", "error": "pip failed"},
    ]
    machine = {"cpu": "x", "cores": 2, "memory_bytes": 1 << 30, "system": "y", "load_before": 0.1}
    options = {"rows": ROWS, "batch": 64, "threads": 2}
    text = report.report({"machine": machine, "options": options, "took_s": 60, "results": results})
    assert "| 100% equal | error |" in text and "- other: pip failed" in text and "- Forebay: lost" in text
    assert report.summary(results[1]) == "failed: pip failed"


def test_distance_is_the_largest_over_all_prefixes(bench: Bench) -> None:
    child = bench("mixture.child")
    sources = np.array([2] * 14 + [1] * 5 + [0])
    distance, rows = child._distance(sources)
    assert rows == 20 and distance == pytest.approx(14 - 14 * 0.7)
