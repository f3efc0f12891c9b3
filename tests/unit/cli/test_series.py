"""`forebay series`: facts of the series, windows of a split, and errors before training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Call = Callable[..., Any]


@pytest.fixture
def meters(tmp_path: Path) -> Path:
    """Three meters of 40, 60 and 80 hours; the last value of each is missing."""
    folder = tmp_path / "meters"
    folder.mkdir()
    for meter, steps in enumerate((40, 60, 80)):
        load = [*np.arange(steps - 1, dtype=float).tolist(), None]
        columns = {"meter": [f"m{meter}"] * steps, "hour": list(range(steps)), "load": load}
        pq.write_table(pa.table(columns), folder / f"{meter}.parquet", row_group_size=20)
    return folder


def test_it_counts_series_and_windows(forebay: Call, meters: Path, tmp_path: Path) -> None:
    shape = ("--entity", "meter", "--time", "hour", "--past", 10, "--future", 2)
    facts = json.loads(forebay("series", meters, *shape, "--split", "0.5", "--json").out)
    assert (facts["entities"], facts["steps"], facts["runs"]) == (3, 180, 9)
    assert (facts["shortest"], facts["median"], facts["longest"], facts["interval"]) == (40, 60, 80, 1)
    assert facts["windows"] == [9 + 19 + 29, 19 + 29 + 39]
    assert (facts["statistics"]["load"]["count"], facts["statistics"]["load"]["nulls"]) == (90, 0)
    assert facts["sort_first"] is False
    said = forebay("series", meters, *shape, "--cache", tmp_path / "cache", "--max-gap", 1)
    assert "longest" in said.out and "load" in said.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--entity", "meter", "--time", "hour", "--past", 90),
            "series has 80 steps, and a window needs 90",
        ),
        (("--time", "hour", "--past", 4), "which overlap"),
        (("--entity", "metre", "--past", 4), "Did you mean 'meter'"),
        (("--entity", "meter", "--past", 4, "--max-gap", "2h"), "max_gap needs a time column"),
        (("--entity", "meter", "--past", 4, "--columns", "meter"), "It takes integers, floats"),
    ],
)
def test_errors_come_before_training(forebay: Call, meters: Path, options: tuple[Any, ...], words: str) -> None:
    said = forebay("series", meters, *options)
    assert said.code == 2
    assert words in said.err
