"""Watch of a driver: it names ranks that are silent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from forebay.events import Event, Failed, NodeUsed, Started, Warned
from forebay.training.driver.rank_stack import SilentRank
from forebay.training.driver.stall_watch import SHARE

AGAIN_SHARE = 0.05
"""Pause between looks, as a share of the job's `hang_timeout_s`. It doubles with each look at the same step."""


class HangWatch:
    """Looks for silent ranks when the run reports nothing.

    After most of `hang_timeout_s`. `look` must not block: an answer may come with a later call. `tell` gets each rank
    once for each silence. Processes of an earlier world may be found, too: silent since before it failed, or before
    `since`, in seconds of `clock`.
    """

    def __init__(
        self,
        hang_timeout_s: float,
        look: Callable[[], Sequence[SilentRank]],
        tell: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
        since: float = -math.inf,
    ) -> None:
        self._timeout_s, self._look, self._tell, self._clock = hang_timeout_s, look, tell, clock
        self._due: float | None = None
        self._since = since
        self._pause_s = 0.0
        self._is_watched = False
        self._told = set[int]()

    def see(self, event: Event) -> None:
        """Note an event.

        No rank waits for a single worker.
        """
        if isinstance(event, Started):
            self._is_watched = event.world_size > 1
        elif isinstance(event, Failed):  # until the next world begins
            self._is_watched, self._since = False, self._clock()
        if not isinstance(event, NodeUsed | Warned):  # they come from threads beside the training
            self._due = self._clock() + SHARE * self._timeout_s if self._is_watched else None
            self._pause_s = AGAIN_SHARE * self._timeout_s
            self._told.clear()

    def check(self) -> None:
        """Look, if it is time, and tell what was found."""
        if self._due is not None and self._clock() >= self._due:
            self.look_now()
            self._due = self._clock() + self._pause_s
            self._pause_s *= 2

    def look_now(self) -> None:
        """Look, and tell what was found.

        At the latest before the world ends, which may be first on a busy machine.
        """
        if self._due is None:
            return
        for each in self._look():
            # Not since its `Started`: on a busy machine, that arrives when a rank may already be silent.
            if each.rank not in self._told and self._clock() - each.seconds >= self._since:
                self._told.add(each.rank)
                self._tell(Warned(reason=each.text, step=each.step, rank=each.rank))
