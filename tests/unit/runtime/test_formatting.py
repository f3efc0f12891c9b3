"""Numbers look the same everywhere."""

from __future__ import annotations

import math

import pytest

from forebay.events import EpochEnded
from forebay.runtime import formatting as wording

EPOCH = EpochEnded(epoch=0, step=9, metrics={}, rows=5000, seconds=10.0, wait_s=2.5, eval_s=1.0, checkpoint_s=0.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.43123, "0.4312"), (12.345, "12.35"), (3.14e-5, "3.1e-05"), (0.0, "0.0000"), (math.nan, "nan")],
)
def test_metric(value: float, text: str) -> None:
    assert wording.metric_text(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (950, "950"), (999.6, "1.00k"), (12_345, "12.3k"), (2_000_000, "2.00M")]
)
def test_count(count: float, text: str) -> None:
    assert wording.count_text(count) == text


@pytest.mark.parametrize(("nbytes", "text"), [(1 << 20, "1.00 MiB"), (412 << 10, "412 KiB"), (5 << 30, "5.00 GiB")])
def test_bytes(nbytes: int, text: str) -> None:
    assert wording.bytes_text(nbytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "-:--"), (0.4, "0:00"), (59.6, "1:00"), (3723, "1:02:03")])
def test_time(seconds: float | None, text: str) -> None:
    assert wording.time_text(seconds) == text


def test_shares_of_an_epoch() -> None:
    assert EPOCH.rows_per_s == 500
    assert EPOCH.wait_share == 0.25
    assert EPOCH.step_s == 6.0
    assert wording.share_text(0.034) == "3 %"
    assert wording.share_text(None) == "- %"
