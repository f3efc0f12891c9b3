"""Rule by which ids of an open vocabulary get rows."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import InvalidOption

MOST_COUNT = 255
_CHECKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Open vocabulary of a `Table`.

    Its ids are any int64. Frequent enough ids get a row of their own.

    All other ids share one row. Looking up counts if a gradient comes back. Lookups of evaluation do not count.

    Attributes:
        min_count: Lookups after which an id gets its row, 1 to 255. They are counted by a sketch, which may count some
            ids too often, and none too seldom. With 1, an id has its row from its first lookup on.
        evict_after: Rows of the run after which an id that was not looked up loses its row: at the first check, of
            which there are 16 in so many rows. Counts of ids without a row start from 0 as often. None: never.

    Raises `InvalidOption` for values that can never work.
    """

    min_count: int = 1
    evict_after: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_count <= MOST_COUNT:
            raise InvalidOption(
                f"Admission(min_count={self.min_count!r}): give a number from 1 to {MOST_COUNT}.",
                min_count=self.min_count,
            )
        if self.evict_after is not None and self.evict_after < 1:
            raise InvalidOption(
                f"Admission(evict_after={self.evict_after!r}): give 1 row or more, or None to keep all ids.",
                evict_after=self.evict_after,
            )

    @property
    def is_immediate(self) -> bool:
        """Whether an id has a row from its first lookup on."""
        return self.min_count == 1

    def check_of(self, position: int) -> int:
        """Return the number of the last check for unseen ids.

        At or before row `position` of the run.

        >>> Admission(evict_after=160).check_of(45)
        4
        """
        return 0 if self.evict_after is None else position // max(self.evict_after // _CHECKS, 1)

    def window_of(self, position: int) -> int:
        """Return the number of the counting span.

        Lookups in a span of rows are counted together.
        """
        return 0 if self.evict_after is None else position // self.evict_after
