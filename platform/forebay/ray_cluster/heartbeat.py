"""Heartbeat of an actor: how long it has not answered. Checked with Ray 2.60."""

from __future__ import annotations

import time
from typing import Any, TypeAlias

import ray

Actor: TypeAlias = Any

_PING_S = 5.0


class Heartbeat:
    """Pings an actor every 5 s. An actor with asynchronous methods answers at once, however busy its threads are."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._ping: Any = None
        self._since = time.monotonic()

    def silent_s(self) -> float:
        """Seconds since the unanswered ping, else 0."""
        now = time.monotonic()
        if self._ping is not None and ray.wait([self._ping], timeout=0)[0]:
            self._ping, self._since = None, now
        if self._ping is None and now - self._since > _PING_S:
            self._ping, self._since = self._actor.__ray_ready__.remote(), now
        return now - self._since if self._ping is not None else 0.0
