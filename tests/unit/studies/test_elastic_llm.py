from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from forebay.testing.drivers.events import StepAttempt

STUDIES = Path(__file__).parents[3] / "studies"


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STUDIES)
        yield importlib.import_module("elastic_llm")


def test_gap_is_what_a_change_adds_to_a_usual_step(study: ModuleType) -> None:
    seconds, sizes = [0.0, 1.0, 2.0, 5.5, 6.5], [2, 2, 2, 1, 1]
    attempts = [
        StepAttempt(time=time, step=step, rank=0, size=size, pid=1, node="a")
        for step, (time, size) in enumerate(zip(seconds, sizes, strict=True))
    ]
    assert study.gaps(attempts) == [{"step": 3, "old": 2, "new": 1, "gap_s": 2.5}]


def test_report_says_what_was_found_and_keeps_what_was_written_below_it(study: ModuleType, tmp_path: Path) -> None:
    found = {
        "driver": "ray",
        "rows": 24,
        "losses": {"straight": [3.0, 2.0], "changed": [3.0, 2.000001]},
        "workers": [2, 1],
        "changes": [{"step": 1, "old": 2, "new": 1, "gap_s": 2.5}],
        "redone": 0,
        "same_rows": True,
        "most_of_a_row": 1,
    }
    study.write_report(found, tmp_path)
    document = tmp_path / "elastic-llm.md"
    text = document.read_text()
    assert "| 2 to 1 | after 1 of 2 | 2.5 |" in text
    assert "at most 1.0e-06 apart" in text and "every step has the same rows" in text
    document.write_text(text + "\n## Reading\nIt depends.\n")
    study.main(["--report", "--out", str(tmp_path)])
    assert document.read_text().endswith("\n## Reading\nIt depends.\n")
    assert json.loads((tmp_path / "elastic-llm.json").read_text()) == found
    assert (tmp_path / "elastic-llm.png").stat().st_size > 10_000
