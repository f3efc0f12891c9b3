"""Backoff from other nodes that fail."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_S = 30.0
_LONGEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures of another node, and its backoff.

    It is skipped for 30 s, then for twice as long each time, up to 600 s. Times are seconds of any monotonic clock.
    """

    failures: int = 0
    skipped_until: float = 0.0

    def is_over(self, now: float) -> bool:
        """Whether the node may be asked."""
        return now >= self.skipped_until

    def after_failure(self, now: float) -> Backoff:
        """Backoff after a failure at `now`.

        Failures while the node is skipped count as one.
        """
        if not self.is_over(now):
            return self  # several threads waited for the same answer
        return Backoff(self.failures + 1, now + min(_FIRST_S * 2**self.failures, _LONGEST_S))

    def after_success(self) -> Backoff:
        """Backoff after an answer.

        The next failure counts as the first.
        """
        return Backoff(0, self.skipped_until)
