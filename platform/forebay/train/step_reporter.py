"""Which steps are told, and when."""

from __future__ import annotations

import time
from collections.abc import Mapping

from forebay.events import Reported, Reporter
from forebay.train.metric import Metric, scalar

REPORT_EVERY_S = 0.1
"""Steps in between are not told: reading a loss waits for the device."""


class StepReports:
    """Tells steps of one rank, at most one every `REPORT_EVERY_S`, but for those that are due."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._told_at = float("-inf")

    def tell(self, metrics: Mapping[str, Metric], *, due: bool, place: Mapping[str, float]) -> None:
        """Report `metrics` as a `Reported` of `place` (its other fields)."""
        now = time.monotonic()
        if due or now - self._told_at >= REPORT_EVERY_S:
            self._told_at = now
            numbers = {name: float(scalar(name, value)) for name, value in metrics.items()}
            self._reporter.report(Reported(metrics=numbers, **place))  # type: ignore[arg-type]
