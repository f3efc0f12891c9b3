"""Runs of a storage, as an error lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.training.runs.found_runs import no_run


@pytest.mark.parametrize(
    ("number", "says"),
    [(0, "It has no runs."), (2, "Its runs are run0, run1."), (12, "run9 and 2 more.")],
)
def test_an_error_says_that_there_are_more_runs(tmp_path: Path, number: int, says: str) -> None:
    for each in range(number):
        (tmp_path / f"run{each:x}").mkdir()
        (tmp_path / f"run{each:x}" / "order.json").touch()
    assert says in str(no_run(str(tmp_path), "other"))
