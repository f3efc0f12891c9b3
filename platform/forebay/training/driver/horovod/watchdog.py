"""Time limit of a collective: over gloo, Horovod 0.28.1 itself would wait for missing ranks forever.

Its stall check looks for missing ranks in `global_ranks_`, a vector that `GlooController::DoInitialization` reserves
and never resizes. Over gloo it is empty, so no rank is ever reported as missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

CHECKS = 20
"""Number of checks per time limit."""


class CollectiveWatchdog:
    """Context around every wait for other ranks. After `timeout_s` seconds in one context, `give_up` is called once.

    It is called in another thread, and must unblock the waiting one. Contexts are entered by one thread, not nested.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], object]) -> None:
        self._timeout_s, self._give_up = timeout_s, give_up
        self._since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="forebay-patience", daemon=True)
        self._thread.start()

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: object, frames: TracebackType | None) -> None:
        self._since = None

    def close(self) -> None:
        """Stop watching. Waits for a call of `give_up` that is under way. None follows."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._timeout_s / CHECKS):
            since = self._since
            if since is not None and time.monotonic() - since > self._timeout_s:
                self._give_up()
                return
