"""Reaction of a start to an earlier start."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import InvalidOption

LEAST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPolicy:
    """Reaction of a start to a run under way elsewhere.

    With `follow`, it shows the progress of the other attempt, waits for its end, and returns its result. Otherwise it
    raises `UnderWay`. An attempt without a heartbeat for `takeover_s` seconds is taken over: the run continues here
    from its newest stored checkpoint, and the silent attempt ends as soon as it reaches storage again. `attempt` names
    an attempt that another process has created for this start, as `NUMBER/TOKEN`. Raises `InvalidOption` for a
    `takeover_s` of less than a second.

    >>> StartPolicy(follow=True).takeover_s
    60.0
    """

    follow: bool = False
    takeover_s: float = 60.0
    attempt: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.takeover_s, bool) or not self.takeover_s >= LEAST_S:
            raise InvalidOption(
                f"takeover_s={self.takeover_s!r} would take over attempts that are alive. Give {LEAST_S:g} second or "
                "more; running attempts send a heartbeat every 15 s."
            )
