"""Rates of the last seconds, not of the whole run."""

from __future__ import annotations

import pytest

from forebay.events import Reported
from forebay.training.callbacks.progress import Throughput


def reported(step: int, rows: int, wait_s: float) -> Reported:
    return Reported(step=step, epoch=0, position=0, metrics={}, rows=rows, wait_s=wait_s)


def test_nothing_is_known_from_one_report() -> None:
    pace = Throughput()
    assert pace.rows_per_s is None
    pace.read(reported(1, 100, 0.0), at=1.0)
    assert (pace.rows_per_s, pace.wait_share, pace.left_s(10)) == (None, None, None)


def test_rates_of_the_window_forget_the_slow_start() -> None:
    pace = Throughput()
    pace.read(reported(1, 100, 50.0), at=0.0)
    for second in range(100, 121):
        pace.read(reported(second, second * 1000, 50.0 + (second - 100) * 0.25), at=float(second))
    assert pace.rows_per_s == pytest.approx(1000)
    assert pace.wait_share == pytest.approx(0.25)
    assert pace.left_s(30) == pytest.approx(30)


def test_new_attempt_begins_a_new_window() -> None:
    pace = Throughput()
    pace.read(reported(50, 5000, 9.0), at=1.0)
    pace.read(reported(60, 6000, 9.5), at=2.0)
    pace.read(reported(41, 4100, 0.0), at=20.0)
    assert pace.rows_per_s is None
    pace.read(reported(42, 4200, 0.5), at=21.0)
    assert pace.rows_per_s == pytest.approx(100)
    assert pace.wait_share == pytest.approx(0.5)
