"""Lookup of blocks on other nodes.

It comes before a read of the source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from forebay.data.cache.backoff import Backoff
from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.transform.block import Block
from forebay.errors import ForebayError

_DEADLINE_S = 5.0
_MOMENT_S = 2.0
_MOST_ASKED = 2


class PeerSilent(ForebayError):
    """A peer that is dead, slow or broken.

    Internal: the source is read instead.
    """


class PeerTransport(Protocol):
    """Transport of requests to the caches of the other nodes."""

    def peer_names(self) -> Collection[str]:
        """Names of all other caches.

        Raises `PeerSilent` if they cannot be listed.
        """
        ...

    def bloom_filters(self, names: Collection[str], deadline_s: float) -> Mapping[str, BloomFilter]:
        """Bloom filters by name.

        Without peers that do not answer within `deadline_s`.
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

    def __init__(self, transport: PeerTransport, *, deadline_s: float = _DEADLINE_S) -> None:
        self._transport = transport
        self._deadline_s = deadline_s
        self._directory = PeerDirectory()
        self._guard = threading.Lock()
        self._refreshing = threading.Lock()

    def find(self, key: str, rows: int) -> Block | None:
        """Get the block from a peer, or None.

        Only a peer whose Bloom filter contains it is asked.
        """
        self._refresh()
        with self._guard:
            holders = self._directory.holders(key, time.monotonic())
        for name in holders[:_MOST_ASKED]:
            block, is_silent = self._request(name, key, rows)
            # "Not here" is a fast answer, so another peer is asked. A silent peer has taken long enough.
            if block or is_silent:
                return block
        return None

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
                self._directory.record_failure(name, time.monotonic())
            return None, True
        with self._guard:
            self._directory.record_success(name)
        return block, False

    def _refresh(self) -> None:
        with self._guard:
            has_refreshed, is_stale = self._directory.has_refreshed, self._directory.is_stale(time.monotonic())
        if not is_stale:
            return
        # One thread runs the round, and the others wait 2 s for its result. If some peer is slow, they use the filters
        # of the last round. In the first round there are none, so they wait longer.
        if not self._refreshing.acquire(timeout=_MOMENT_S if has_refreshed else 2 * self._deadline_s):
            return
        try:
            self._pull_filters()
        finally:
            self._refreshing.release()

    def _pull_filters(self) -> None:
        now = time.monotonic()
        with self._guard:
            if not self._directory.is_stale(now):
                return
        try:
            names = self._transport.peer_names()
        except PeerSilent:
            names = ()
        with self._guard:
            asked = self._directory.set_peers(names, now)
        answers = self._transport.bloom_filters(asked, self._deadline_s) if asked else {}
        now = time.monotonic()
        with self._guard:
            for name in asked:
                if name in answers:
                    self._directory.set_filter(name, answers[name])
                else:
                    self._directory.record_failure(name, now)
            self._directory.end_round(now)


_FRESH_S = 2.0
_FRESH_PER_PEER_S = 0.02
"""With many nodes a round takes long, so rounds are less frequent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    bloom_filter: BloomFilter | None = None
    backoff: Backoff = field(default_factory=Backoff)


class PeerDirectory:
    """Bloom filters of the other nodes.

    Pulled from each of them. No central node collects them.

    An entry may be wrong: the block may have been evicted since, or the filter gives a false positive. Times are
    seconds of any monotonic clock. Not thread-safe.
    """

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._fresh_until: float | None = None

    @property
    def has_refreshed(self) -> bool:
        """Whether a round of requests has ended."""
        return self._fresh_until is not None

    def is_stale(self, now: float) -> bool:
        """Whether the next round of requests is due."""
        return self._fresh_until is None or now >= self._fresh_until

    def set_peers(self, names: Collection[str], now: float) -> list[str]:
        """Set the current peers and drop all others.

        Returns the peers to ask for their Bloom filters.
        """
        self._peers = {name: self._peers.get(name, _Peer()) for name in names}
        return sorted(name for name, peer in self._peers.items() if peer.backoff.is_over(now))

    def set_filter(self, name: str, bloom_filter: BloomFilter) -> None:
        """Record the Bloom filter of `name`."""
        self._peers[name] = replace(self._peers.get(name, _Peer()), bloom_filter=bloom_filter)

    def end_round(self, now: float) -> None:
        """End a round of requests.

        The filters count as fresh for a while.
        """
        self._fresh_until = now + max(_FRESH_S, _FRESH_PER_PEER_S * len(self._peers))

    def record_success(self, name: str) -> None:
        """Reset the failures of `name`.

        It answered about a block.
        """
        peer = self._peers.get(name, _Peer())
        self._peers[name] = replace(peer, backoff=peer.backoff.after_success())

    def record_failure(self, name: str, now: float) -> None:
        """Skip `name` after a missing or invalid answer.

        For twice as long after each further failure.
        """
        peer = self._peers.get(name, _Peer())
        # Without its filter: it may hold other blocks when it answers again.
        if peer.backoff.is_over(now):
            self._peers[name] = _Peer(backoff=peer.backoff.after_failure(now))

    def holders(self, key: str, now: float) -> list[str]:
        """Peers whose filters contain the block `key`.

        The first one varies with the key, to spread the load.
        """
        holders = sorted(
            name
            for name, peer in self._peers.items()
            if peer.bloom_filter and peer.backoff.is_over(now) and key in peer.bloom_filter
        )
        # The last digits of a key are not used by the filters, so false positives do not bias the choice.
        first = int(key[-8:], 16) % max(len(holders), 1)
        return holders[first:] + holders[:first]
