"""A damaged file is refused with a `ForebayError` or read correctly.

Wrong values can be detected only where there are checksums: in block files, in checkpoints, and in the pages of Parquet
files that were written with them. In other Parquet files wrong values may pass, but rows and types are right.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

# Number of cases for a few seconds of `make test`. `-m soak` runs many more, each time with another seed.
SHORT = {"parquet": 300, "cached": 60, "saved": 200}
LONG = {"parquet": 100_000, "cached": 20_000, "saved": 50_000}


@pytest.mark.parametrize("target", SHORT)
def test_nothing_damaged_does_harm(fuzz: Callable[..., Any], target: str) -> None:
    fuzz(target, SHORT[target])


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("target", LONG)
def test_nothing_damaged_does_harm_for_hours(fuzz: Callable[..., Any], target: str) -> None:
    fuzz(target, LONG[target], seed=time.time_ns() % 1_000_000_007)


def test_damage_is_met_everywhere(fuzz: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """If every case ended at the first check, no case would test the code behind it."""
    monkeypatch.delenv("FOREBAY_FUZZ_CASES", raising=False)
    outcomes = fuzz("parquet", 100, seed=5).outcomes
    ends = Counter("read" if "refused by the read" in outcome else outcome.partition(":")[0] for _, outcome in outcomes)
    assert ends["read"] > 5 and ends["refused by the scan"] > 5 and ends["same data"] > 5
