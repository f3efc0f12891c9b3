"""Who holds what among the nodes, as far as one of them knows: whom to ask, and whom to leave alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from forebay.cache.node.bloom_filter import BloomFilter

_FRESH_S = 2.0
_FRESH_PER_PEER_S = 0.02
"""With so many nodes that asking all of them takes long, they are asked less often."""
_FIRST_REST_S = 30.0
_LONGEST_REST_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    summary: BloomFilter | None = None
    failures: int = 0
    rests_until: float = 0.0


class PeerDirectory:
    """The summaries of the other nodes, pulled from each of them; there is no node that knows all.

    What is in it may be wrong: a block may have been evicted since, or a summary may say yes in error. Times are
    seconds of any clock that only goes forward. Not safe for threads.
    """

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._fresh_until: float | None = None

    @property
    def is_new(self) -> bool:
        """Whether the peers have never been asked."""
        return self._fresh_until is None

    def is_stale(self, now: float) -> bool:
        """Whether it is time to ask the peers again."""
        return self._fresh_until is None or now >= self._fresh_until

    def meet(self, names: Collection[str], now: float) -> list[str]:
        """These are the peers now, others are forgotten; those to be asked for their summaries."""
        self._peers = {name: self._peers.get(name, _Peer()) for name in names}
        return sorted(name for name, peer in self._peers.items() if now >= peer.rests_until)

    def learn(self, name: str, summary: BloomFilter) -> None:
        """What `name` has said that it holds."""
        self._peers[name] = replace(self._peers.get(name, _Peer()), summary=summary)

    def refreshed(self, now: float) -> None:
        """All have been asked: go by what they said for a while."""
        self._fresh_until = now + max(_FRESH_S, _FRESH_PER_PEER_S * len(self._peers))

    def answered(self, name: str) -> None:
        """`name` has answered for a block, so its earlier failures are forgiven."""
        self._peers[name] = replace(self._peers.get(name, _Peer()), failures=0)

    def failed(self, name: str, now: float) -> None:
        """`name` did not answer, or answered nonsense: leave it alone, for twice as long each time in a row."""
        peer = self._peers.get(name, _Peer())
        # Several threads may have been waiting for it: that is one failure.
        if now >= peer.rests_until:
            rest_s = min(_FIRST_REST_S * 2**peer.failures, _LONGEST_REST_S)
            self._peers[name] = _Peer(failures=peer.failures + 1, rests_until=now + rest_s)

    def holders(self, key: str, now: float) -> list[str]:
        """Who says that it holds the block `key`. Another one comes first for another key: all are asked as often."""
        holders = sorted(
            name
            for name, peer in self._peers.items()
            if peer.summary and now >= peer.rests_until and key in peer.summary
        )
        # The last digits of a key play no part in summaries, so the choice does not depend on who says yes in error.
        first = int(key[-8:], 16) % max(len(holders), 1)
        return holders[first:] + holders[:first]
