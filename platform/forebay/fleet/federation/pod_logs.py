"""Logs of attempts, copied from pods into storage."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from forebay.errors import ForebayError
from forebay.fleet.client.stored_log import StoredLog
from forebay.runtime.foreign_code import begin
from forebay.storage.atomic import find_small
from forebay.storage.filesystem import resolve_source

AGAIN_S = 5.0
"""Time between the end of a connection and the next one."""
GIVE_UP_S = 600.0
"""Time for which the last lines of an attempt that ended are asked for, while its cluster is silent."""
MOST_FOLLOWED = 1000
"""Logs that are followed at once, each by a thread. Above that, the others wait for one to end."""


class OpenLog(Protocol):
    """Opens a log, and yields its lines with times.

    They begin at `since`, to the second. Raises `ForebayError`s.
    """

    def __call__(self, since: str, *, follow: bool) -> Iterator[str]: ...


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")


class LogFollower(threading.Thread):
    """Copies the log of one attempt to `uri`.

    After a lost connection it goes on behind its last line. So does a follower in another process: the lines in the
    file have their times.
    """

    def __init__(self, uri: str, open_log: OpenLog) -> None:
        super().__init__(name="forebay-log", daemon=True)
        self._uri, self._open = uri, open_log
        self._is_over = threading.Event()
        self._last = ""

    def finish(self) -> None:
        """End the thread after the present lines."""
        self._is_over.set()

    def run(self) -> None:
        log = self._begin()
        give_up_at: float | None = None
        while True:
            is_last = self._is_over.is_set()
            if is_last and give_up_at is None:
                give_up_at = time.monotonic() + GIVE_UP_S
            try:
                self._copy(log, follow=not is_last)
            except ForebayError:
                is_last = give_up_at is not None and time.monotonic() >= give_up_at
            if is_last:
                break
            if give_up_at is None:
                self._is_over.wait(AGAIN_S)
            else:
                time.sleep(AGAIN_S)
        log.flush()

    def _begin(self) -> StoredLog:
        """Return the log that an earlier follower stored.

        Waits for storage: a file that is there is never replaced.
        """
        while True:
            try:
                earlier = find_small(resolve_source(self._uri))
            except OSError:
                time.sleep(AGAIN_S)
                continue
            if earlier is None:
                return StoredLog(self._uri)
            times = [_TIME.match(line) for line in earlier.decode(errors="replace").splitlines()]
            self._last = max((found[0] for found in times if found), default="")
            return StoredLog(self._uri, earlier)

    def _copy(self, log: StoredLog, *, follow: bool) -> None:
        seen = self._last
        found = _TIME.match(seen)
        for line in self._open(f"{found[1]}{found[2]}" if found else "", follow=follow):
            at = _TIME.match(line)
            # Without a time, it is text of the kubelet. Times are answered to the second: the first lines are known.
            if at is None or at[0] <= seen:
                continue
            seen, self._last = "", at[0]
            log.append(f"{line}\n".encode())


class FleetLogs:
    """Logs of followed attempts, by name of the RayJob."""

    def __init__(self) -> None:
        self._followers: dict[str, LogFollower] = {}

    def follow(self, name: str, uri: str, open_log: OpenLog) -> None:
        """Follow the log of an attempt, unless it is followed."""
        self._followers = {each: found for each, found in self._followers.items() if found.is_alive() or each == name}
        if name not in self._followers and len(self._followers) < MOST_FOLLOWED:
            self._followers[name] = begin(LogFollower(uri, open_log))

    def finish(self, name: str) -> bool:
        """End the copy of a log after the present lines.

        Returns whether it has ended.
        """
        follower = self._followers.get(name)
        if follower is not None:
            follower.finish()
        return follower is None or not follower.is_alive()

    def followed(self) -> tuple[str, ...]:
        """Names of the attempts whose logs are followed."""
        return tuple(self._followers)
