"""Where a block may be found before its source is read: with another node that holds it."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Protocol

from forebay.cache.node.bloom_filter import BloomFilter
from forebay.cache.node.peer_directory import PeerDirectory
from forebay.errors import ForebayError
from forebay.transform.block import Block

_DEADLINE_S = 5.0
_MOMENT_S = 2.0
_MOST_ASKED = 2


class PeerSilent(ForebayError):
    """A peer that is dead, slow or broken. Never reaches the user: the block is made from its source."""


class PeerTransport(Protocol):
    """The line to the caches of the other nodes."""

    def names(self) -> Collection[str]:
        """The caches there are, without the own one. Raises `PeerSilent` if that cannot be told."""
        ...

    def summaries(self, names: Collection[str], deadline_s: float) -> Mapping[str, BloomFilter]:
        """What each holds, without those that do not answer within `deadline_s`."""
        ...

    def block(self, name: str, key: str, deadline_s: float) -> Block | None:
        """The block from `name`, None if it is not there (any more) or too much is asked of it at once.

        Raises `PeerSilent` if there is no answer within `deadline_s`.
        """
        ...


class PeerLookup:
    """`Peers` over a line; safe for threads. Nobody is asked while nothing is missed."""

    def __init__(self, line: PeerTransport, *, deadline_s: float = _DEADLINE_S) -> None:
        self._line = line
        self._deadline_s = deadline_s
        self._directory = PeerDirectory()
        self._knowing = threading.Lock()
        self._refreshing = threading.Lock()

    def find(self, key: str, rows: int) -> Block | None:
        """The block from a peer that says it holds it, or None."""
        self._refresh()
        with self._knowing:
            holders = self._directory.holders(key, time.monotonic())
        for name in holders[:_MOST_ASKED]:
            block, is_silent = self._ask(name, key, rows)
            # Not there any more takes no time to say, so another one is asked; silence has taken long enough.
            if block or is_silent:
                return block
        return None

    def _ask(self, name: str, key: str, rows: int) -> tuple[Block | None, bool]:
        """The block, and whether `name` failed to answer."""
        try:
            block = self._line.block(name, key, self._deadline_s)
            if block and not _has_rows(block, rows):
                raise PeerSilent(f"{name} gave block {key} with other than {rows} rows.")
        except PeerSilent:
            with self._knowing:
                self._directory.failed(name, time.monotonic())
            return None, True
        with self._knowing:
            self._directory.answered(name)
        return block, False

    def _refresh(self) -> None:
        with self._knowing:
            is_new, is_stale = self._directory.is_new, self._directory.is_stale(time.monotonic())
        if not is_stale:
            return
        # While one thread asks around, the others wait for what it learns, which takes a moment. If some peer is slow,
        # they rather go by what is known, unless that is nothing at all.
        if not self._refreshing.acquire(timeout=2 * self._deadline_s if is_new else _MOMENT_S):
            return
        try:
            self._ask_around()
        finally:
            self._refreshing.release()

    def _ask_around(self) -> None:
        now = time.monotonic()
        with self._knowing:
            if not self._directory.is_stale(now):
                return
        try:
            names = self._line.names()
        except PeerSilent:
            names = ()
        with self._knowing:
            asked = self._directory.meet(names, now)
        answers = self._line.summaries(asked, self._deadline_s) if asked else {}
        now = time.monotonic()
        with self._knowing:
            for name in asked:
                if name in answers:
                    self._directory.learn(name, answers[name])
                else:
                    self._directory.failed(name, now)
            self._directory.refreshed(now)


def _has_rows(block: Block, rows: int) -> bool:
    return block.rows == rows and all(len(array) == rows for array in block.arrays.values())
