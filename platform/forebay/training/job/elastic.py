"""Bounds and first target of a job's worker count."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import InvalidOption, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Bounds of a run's world size.

    A run always trains with at least `min_workers` and at most `max_workers` workers. `start` is the first target. None
    means `max_workers`. A run begins as soon as `min_workers` workers are there. Raises `InvalidOption` unless `1 <=
    min_workers <= start <= max_workers`.

    >>> Elastic(min_workers=1, max_workers=4).target
    4
    """

    min_workers: int
    max_workers: int
    start: int | None = None

    def __post_init__(self) -> None:
        for option in ("min_workers", "max_workers", *(("start",) if self.start is not None else ())):
            object.__setattr__(self, option, whole_number(option, getattr(self, option), least=1))
        if not self.min_workers <= self.target <= self.max_workers:
            raise InvalidOption(
                f"Elastic(min_workers={self.min_workers}, max_workers={self.max_workers}, start={self.start}) has no "
                "world size that fits. Give min_workers <= start <= max_workers."
            )

    @property
    def target(self) -> int:
        """First target of the run."""
        return self.max_workers if self.start is None else self.start

    def with_room(self, workers: int) -> Elastic:
        """Return bounds of at most `workers`, which is `min_workers` or more."""
        return Elastic(
            min_workers=self.min_workers,
            max_workers=min(self.max_workers, workers),
            start=None if self.start is None else min(self.start, workers),
        )

    def clamp(self, workers: int) -> int:
        """Return `workers`, clamped to the bounds."""
        return min(max(workers, self.min_workers), self.max_workers)
