"""Progress of a pass over the row groups of sequences, sent where preparations send theirs."""

from __future__ import annotations

import time

from forebay.data.preparation.progress import tell
from forebay.runtime.formatting import count_text, rate_text, share_text, time_text

REPORT_EVERY_S = 5.0


class PassProgress:
    """Reports rows and the rate of a pass every five seconds. A pass that ends before reports nothing.

    Args:
        name: What the pass does, in messages.
        num_rows: Rows of all row groups.
    """

    def __init__(self, name: str, num_rows: int) -> None:
        self._name, self._num_rows, self._done = name, num_rows, 0
        self._began = time.monotonic()
        self._due = self._began + REPORT_EVERY_S

    def add(self, rows: int) -> None:
        """Count `rows` as done."""
        self._done += rows
        if (now := time.monotonic()) < self._due:
            return
        self._due = now + REPORT_EVERY_S
        rate = self._done / max(now - self._began, 1e-9)
        left = time_text((self._num_rows - self._done) / rate) if rate else "-:--"
        share = share_text(self._done / max(self._num_rows, 1))
        tell(f"{self._name}: {share} of {count_text(self._num_rows)} rows, {rate_text(rate)}, {left} left")
