"""Limits step reports to 10 per second."""

from __future__ import annotations

import time
from collections.abc import Mapping

from forebay.events import Reported, Reporter
from forebay.train.metric import Metric, scalar, weighted

REPORT_EVERY_S = 0.1
"""Minimum seconds between reports. Reading a loss waits for the device."""


class StepReports:
    """Step reports of one rank: those that are due, and at most one of the others every `REPORT_EVERY_S`."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._reported_at = float("-inf")

    def report(self, metrics: Mapping[str, Metric], *, due: bool, place: Mapping[str, float]) -> None:
        """Report `metrics` as a `Reported`. `place` holds its other fields."""
        now = time.monotonic()
        if due or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            given = {name: value for name, value in metrics.items() if weighted(name, value)[1] > 0}
            numbers = {name: float(scalar(name, value)) for name, value in given.items()}
            self._reporter.report(Reported(metrics=numbers, **place))  # type: ignore[arg-type]
