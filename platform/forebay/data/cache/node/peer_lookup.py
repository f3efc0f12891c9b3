"""Lookup of blocks on other nodes.

It comes before a read of the source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.cache.node.peer_directory import HeardFilter, PeerDirectory
from forebay.data.transform.block import Block
from forebay.errors import ExitCode, ForebayError

_DEADLINE_S = 5.0
_MOMENT_S = 2.0
_MOST_ASKED = 2


class PeerSilent(ForebayError):
    """A peer that is dead, slow or broken.

    Internal: the source is read instead.
    """

    exit_status = ExitCode.FAILED


class PeerTransport(Protocol):
    """Transport of requests to the caches of the other nodes."""

    def peer_names(self) -> Collection[str]:
        """Names of all other caches.

        Raises `PeerSilent` if they cannot be listed.
        """
        ...

    def ask_filters(
        self, names: Collection[str], known: Collection[str], within_s: float, deadline_s: float
    ) -> Mapping[str, Mapping[str, HeardFilter]]:
        """Answer of each of `names`: its own filter, and those it has received.

        Without filters of `known` peers, and those older than `within_s`. Without peers that do not answer within
        `deadline_s`.
        """
        ...

    def fetch_block(self, name: str, key: str, deadline_s: float) -> Block | None:
        """Get the block from `name`.

        None if it is missing on its disk, or if the peer is busy.

        Raises `PeerSilent` without an answer within `deadline_s`.
        """
        ...


class PeerLookup:
    """`Peers` over a transport.

    Thread-safe. Sends no requests while no block is missing.
    """

    def __init__(
        self,
        transport: PeerTransport,
        *,
        deadline_s: float = _DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        directory: PeerDirectory | None = None,
    ) -> None:
        self._transport = transport
        self._deadline_s = deadline_s
        self._clock = clock
        self._directory = directory or PeerDirectory()
        self._guard = threading.Lock()
        self._refreshing = threading.Lock()

    def answer(self, own: BloomFilter, known: Collection[str], within_s: float) -> dict[str, HeardFilter]:
        """Filters for a node that asks this one. See `PeerDirectory.answer`."""
        with self._guard:
            return self._directory.answer(own, known, within_s, self._clock())

    def begin_with(self, names: Collection[str]) -> None:
        """Take peers of a list that the run made. See `PeerDirectory.begin_with`."""
        with self._guard:
            self._directory.begin_with(names, self._clock())

    def find(self, key: str, rows: int) -> Block | None:
        """Get the block from a peer, or None.

        Only a peer whose Bloom filter contains it is asked. An old filter serves as well: a peer that has evicted the
        block says so at once. New ones are asked for where those at hand do not lead to it.
        """
        asked: list[str] = []
        has_refreshed = False
        while True:
            for name in self._holders(key, asked):
                asked.append(name)
                block, is_silent = self._request(name, key, rows)
                # "Not here" is a fast answer, so another peer is asked. A silent peer has taken long enough.
                if block or is_silent:
                    return block
            if has_refreshed or not self._refresh():
                return None
            has_refreshed = True

    def _holders(self, key: str, asked: Sequence[str]) -> list[str]:
        with self._guard:
            holders = self._directory.holders(key, self._clock())
        return [name for name in holders if name not in asked][: _MOST_ASKED - len(asked)]

    def _request(self, name: str, key: str, rows: int) -> tuple[Block | None, bool]:
        """Request the block.

        Returns it, and whether `name` failed to answer.
        """
        try:
            block = self._transport.fetch_block(name, key, self._deadline_s)
            if block and not block.has_rows(rows):
                raise PeerSilent(f"{name} sent block {key} with other than {rows} rows.")
        except PeerSilent:
            with self._guard:
                self._directory.record_failure(name, self._clock())
            return None, True
        with self._guard:
            self._directory.record_success(name)
        return block, False

    def _refresh(self) -> bool:
        """Ask for filters, unless that was done a moment ago. Returns whether there may be new ones."""
        with self._guard:
            has_refreshed, is_stale = self._directory.has_refreshed, self._directory.is_stale(self._clock())
        if not is_stale:
            return False
        # One thread runs the round, and the others wait 2 s for its result. If some peer is slow, they use the filters
        # of the last round. In the first round there are none, so they wait longer.
        if not self._refreshing.acquire(timeout=_MOMENT_S if has_refreshed else 2 * self._deadline_s):
            return True
        try:
            self._pull_filters()
        finally:
            self._refreshing.release()
        return True

    def _pull_filters(self) -> None:
        now = self._clock()
        give_up = now + self._deadline_s
        with self._guard:
            if not self._directory.is_stale(now):
                return
            needs_list = self._directory.needs_list(now)
        if needs_list:
            try:
                names = self._transport.peer_names()
            except PeerSilent:
                names = ()
            with self._guard:
                self._directory.set_peers(names, now)
        while self._ask_some() and self._clock() < give_up:
            pass
        with self._guard:
            self._directory.end_round(self._clock())

    def _ask_some(self) -> bool:
        """Ask some peers for filters. Returns whether any was left."""
        now = self._clock()
        with self._guard:
            asked = self._directory.to_ask(now)
            known, within_s = self._directory.fresh(now), self._directory.fresh_s
        if not asked:
            return False
        answers = self._transport.ask_filters(asked, known, within_s, self._deadline_s)
        with self._guard:
            self._directory.record_answers(asked, answers, self._clock())
        return True
