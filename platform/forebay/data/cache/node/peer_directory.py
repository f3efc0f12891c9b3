"""Bloom filters and failures of the other nodes, as one node knows them. Decides which peer to ask next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from forebay.data.cache.backoff import Backoff
from forebay.data.cache.node.bloom_filter import BloomFilter

_FRESH_S = 2.0
_FRESH_PER_PEER_S = 0.02
"""With many nodes a round takes long, so rounds are less frequent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    bloom_filter: BloomFilter | None = None
    backoff: Backoff = field(default_factory=Backoff)


class PeerDirectory:
    """Bloom filters of the other nodes, pulled from each of them. No central node collects them.

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
        """Set the current peers and drop all others. Returns the peers to ask for their Bloom filters."""
        self._peers = {name: self._peers.get(name, _Peer()) for name in names}
        return sorted(name for name, peer in self._peers.items() if peer.backoff.is_over(now))

    def set_filter(self, name: str, bloom_filter: BloomFilter) -> None:
        """Record the Bloom filter of `name`."""
        self._peers[name] = replace(self._peers.get(name, _Peer()), bloom_filter=bloom_filter)

    def end_round(self, now: float) -> None:
        """End a round of requests: the filters count as fresh for a while."""
        self._fresh_until = now + max(_FRESH_S, _FRESH_PER_PEER_S * len(self._peers))

    def record_success(self, name: str) -> None:
        """Reset the failures of `name` after an answer about a block."""
        peer = self._peers.get(name, _Peer())
        self._peers[name] = replace(peer, backoff=peer.backoff.after_success())

    def record_failure(self, name: str, now: float) -> None:
        """Skip `name` after a missing or invalid answer, for twice as long after each further failure."""
        peer = self._peers.get(name, _Peer())
        # Without its filter: it may hold other blocks when it answers again.
        if peer.backoff.is_over(now):
            self._peers[name] = _Peer(backoff=peer.backoff.after_failure(now))

    def holders(self, key: str, now: float) -> list[str]:
        """Peers whose filters contain the block `key`. The first one varies with the key, to spread the load."""
        holders = sorted(
            name
            for name, peer in self._peers.items()
            if peer.bloom_filter and peer.backoff.is_over(now) and key in peer.bloom_filter
        )
        # The last digits of a key are not used by the filters, so false positives do not bias the choice.
        first = int(key[-8:], 16) % max(len(holders), 1)
        return holders[first:] + holders[:first]
