"""The notebook on forecasts runs from top to bottom, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.notebook import executed


@pytest.mark.variation  # docs/sequences.md and jobs/forecast.py, which use the same parts, run by default
def test_forecast_runs(tmp_path: Path) -> None:
    done = executed("forecast", tmp_path, timeout_s=180)
    learned, repeated = (float(re.search(rf"{name} ([\d.]+)", done.text)[1]) for name in ("error", "repeated"))
    assert learned < repeated / 2
    assert done.num_pictures == 2
