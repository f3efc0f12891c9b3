"""The one place where a run's workers and its driver leave word for each other; no process of theirs depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from forebay.driver.raised import Raised
from forebay.train.events import Event, Failed


class Coordinator:
    """Runs as a named actor without CPUs, on the driver's node; all methods are short.

    Knows nothing of Ray: workers are opaque handles. It keeps what was reported until the driver takes it, who belongs
    to the current attempt, why the run should stop, and how it failed.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._workers: dict[int, Any] = {}
        self._complete = asyncio.Event()
        self._stop_reason: str | None = None
        self._stopped: str | None = None
        self._raised: Raised | None = None
        self._failures = 0
        self._is_ending = False

    async def report(self, event: Event) -> None:
        """Keep an event for the driver."""
        self._events.append(event)
        self._arrived.set()

    async def take(self, wait_s: float) -> Sequence[Event]:
        """All events since the last call; waits up to `wait_s` seconds for the first."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), wait_s)
        events, self._events = self._events, []
        self._arrived.clear()
        return events

    async def join(self, rank: int, worker: Any) -> bool:
        """Enter the current attempt; answers when all ranks have, with False if the run is ending instead."""
        self._workers[rank] = worker
        if len(self._workers) == self._world_size:
            self._complete.set()
        await self._complete.wait()
        return not self._is_ending

    async def workers(self) -> dict[int, Any]:
        """The workers of the current attempt, by rank."""
        return dict(self._workers)

    async def stop(self, reason: str) -> None:
        """Ask for an end at the next saved commit."""
        self._stop_reason = reason

    async def stop_reason(self) -> str | None:
        """Why the run should stop, or None."""
        return self._stop_reason

    async def finished(self, stopped: str | None) -> None:
        """Rank 0's train function has returned; `stopped` says why early."""
        self._stopped = stopped

    async def stopped(self) -> str | None:
        """Why the run ended early, once it has ended."""
        return self._stopped

    async def raise_error(self, raised: Raised) -> None:
        """Note what a train function raised; the first one is the cause, whatever followed from it."""
        if self._raised is None:
            self._raised = raised

    async def raised(self) -> Raised | None:
        """What a train function raised, if one did."""
        return self._raised

    async def end(self) -> dict[int, Any]:
        """The driver gives up: no attempt follows. Returns the workers to end."""
        self._is_ending = True
        self._complete.set()
        return dict(self._workers)

    async def may_retry(self) -> bool:
        """Whether lost workers may be replaced: not after an exception of the train function, nor when ending."""
        return self._raised is None and not self._is_ending

    async def lost_workers(self, error: str) -> None:
        """Open the next attempt."""
        self._failures += 1
        self._workers = {}
        if not self._is_ending:
            self._complete.clear()
        await self.report(Failed(error=error, failures=self._failures, will_retry=True))
