"""Bloom filters of the other nodes, and their age."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from forebay.data.cache.backoff import Backoff
from forebay.data.cache.node.bloom_filter import BloomFilter, probes_of

_ROUND_S = 2.0
_FRESH_PER_PEER_S = 0.02
"""With many nodes a filter is fresh for longer, so that each node answers at most 50 requests a second."""
_LISTED_PER_PEER_S = 0.1
"""All nodes together list the cluster 10 times a second at most: the list comes from one process, Ray's GCS."""
_ASKED_AT_ONCE = 8
"""Few, since the answers of some save requests to others: they bring the filters that these have received."""
_ALONE = 3
"""After so many batches whose peers have received no filters, each asks twice as many as the one before."""
_FEW_PEERS = 64
"""With more, a filter that is missing is not always asked for at its own node: all would do so at once."""
_MOST_IN_VAIN = 3
"""A round ends after so many batches of requests that brought none of the missing filters."""
OWN = ""
"""Name of the answering node in its own answer."""


@dataclass(frozen=True, slots=True)
class HeardFilter:
    """Bloom filter of a node, built `age_s` seconds ago.

    `asks` in a node's own: whether it has fresh filters of others.
    """

    bloom_filter: BloomFilter
    age_s: float = 0.0
    asks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    bloom_filter: BloomFilter | None = None
    built_at: float = float("-inf")
    backoff: Backoff = field(default_factory=Backoff)


class PeerDirectory:
    """Bloom filters of the other nodes.

    Each node keeps its own. An answer also brings the filters that the answering node has received from others. So a
    node does not ask all others: at a start of 1,000 nodes, each asks about 40.

    Each node asks in a random order of its own, those first that it has not asked for longest. While nodes that were
    asked ask others too, it asks any peer, also one whose filter it has: when only missing filters were asked for,
    509 of 1,000 nodes came to the same last one at once.

    An entry may be wrong: the block may have been evicted since, or the filter gives a false positive. Times are
    seconds of any monotonic clock, and only ages are sent, never times. Not thread-safe.

    `seed` of that order, by default drawn.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._order: dict[str, None] = {}
        self._others_ask, self._in_vain, self._alone = False, 0, 0
        self._asked: set[str] = set()
        self._peers: dict[str, _Peer] = {}
        self._listed_at: float | None = None
        self._next_round: float | None = None

    @property
    def has_refreshed(self) -> bool:
        """Whether a round of requests has ended."""
        return self._next_round is not None

    @property
    def fresh_s(self) -> float:
        """Age up to which a filter is not asked for again."""
        return max(_ROUND_S, _FRESH_PER_PEER_S * len(self._peers))

    def is_stale(self, now: float) -> bool:
        """Whether the next round of requests is due."""
        return self._next_round is None or now >= self._next_round

    def needs_list(self, now: float) -> bool:
        """Whether the names of the peers must be listed again."""
        return self._listed_at is None or now >= self._listed_at + self._list_s

    @property
    def _list_s(self) -> float:
        return max(_ROUND_S, _LISTED_PER_PEER_S * len(self._peers))

    def begin_with(self, names: Collection[str], now: float) -> None:
        """Take many peers from a list that another process made, if this node has none yet.

        When 1,000 nodes start, each would list the cluster at once: a million entries from one process. Their own lists
        follow at moments spread over the time between two of them. A few nodes list it themselves: some of `names` may
        have no cache.
        """
        if self._listed_at is None and len(names) > _FEW_PEERS:
            self.set_peers(names, now)
            self._listed_at = now - self._random.random() * self._list_s

    def set_peers(self, names: Collection[str], now: float) -> None:
        """Set the current peers and drop all others."""
        kept = set(names)
        known = [name for name in self._order if name in kept]
        positions = {name: (index + 1) / (len(known) + 1) for index, name in enumerate(known)}
        positions |= {name: self._random.random() for name in sorted(kept.difference(known))}
        self._order = dict.fromkeys(sorted(positions, key=positions.__getitem__))
        self._peers = {name: self._peers.get(name, _Peer()) for name in self._order}
        self._listed_at = now

    def to_ask(self, now: float) -> list[str]:
        """Peers to ask next. None once all filters are fresh, or others have no news of the missing ones.

        At most 8, and more where only this node asks: then no answer saves a request to others.
        """
        missing = self.missing(now)
        if not missing or self._in_vain >= _MOST_IN_VAIN:
            return []
        if self._others_ask:
            return [name for name in self._order if self._peers[name].backoff.is_over(now)][:_ASKED_AT_ONCE]
        # Each once in a round: where answers take a second, the first filters are old before the last ones come.
        left = [name for name in missing if name not in self._asked]
        return left[: _ASKED_AT_ONCE << max(0, self._alone - _ALONE + 1)]

    def missing(self, now: float) -> list[str]:
        """Peers without a fresh filter that may be asked."""
        return [name for name in self._order if self._is_wanted(self._peers[name], now)]

    def fresh(self, now: float) -> frozenset[str]:
        """Peers whose filters are fresh."""
        return frozenset(name for name, peer in self._peers.items() if self._is_fresh(peer, now))

    def answer(self, own: BloomFilter, known: Collection[str], within_s: float, now: float) -> dict[str, HeardFilter]:
        """Answer for another node: its own filter, and those it has received.

        Without those of `known` peers, and those that are older than `within_s`.
        """
        heard = {
            name: HeardFilter(peer.bloom_filter, now - peer.built_at)
            for name, peer in self._peers.items()
            if peer.bloom_filter is not None and name not in known and now - peer.built_at <= within_s
        }
        asks = any(self._is_fresh(peer, now) for peer in self._peers.values())
        return {**heard, OWN: HeardFilter(own, asks=asks)}

    def record_answers(self, asked: list[str], answers: Mapping[str, Mapping[str, HeardFilter]], now: float) -> None:
        """Record the answers of peers that were asked together. Those without an answer are skipped for a while."""
        missing = set(self.missing(now))
        self._asked.update(asked)
        for name in asked:
            self._order[name] = self._order.pop(name)
            if name in answers:
                self._record_answer(name, answers[name], now)
            else:
                self.record_failure(name, now)
        has_news = any(answer[OWN].asks for answer in answers.values())
        self._others_ask, self._alone = len(self._peers) > _FEW_PEERS and has_news, 0 if has_news else self._alone + 1
        self._in_vain = self._in_vain + 1 if self._others_ask and missing <= set(self.missing(now)) else 0

    def _record_answer(self, name: str, answer: Mapping[str, HeardFilter], now: float) -> None:
        for each, heard in answer.items():
            of, built_at = each or name, now - heard.age_s
            found = self._peers.get(of)
            if found is None and (self._listed_at is None or built_at < self._listed_at):
                continue  # it had left before the peers were listed
            if found is None:
                self._order[of] = None
            found = found or _Peer()
            # A failed peer may hold other blocks when it answers again: only it says so.
            if built_at > found.built_at and (each == OWN or found.backoff.is_over(now)):
                self._peers[of] = replace(found, bloom_filter=heard.bloom_filter, built_at=built_at)

    def end_round(self, now: float) -> None:
        """End a round of requests. The next one is due after 2 s, or at once if peers are left to ask."""
        self._next_round = now if self.to_ask(now) else now + _ROUND_S
        self._in_vain = self._alone = 0
        self._asked.clear()

    def record_success(self, name: str) -> None:
        """Reset the failures of `name`.

        It answered about a block.
        """
        if peer := self._peers.get(name):
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
        probes = probes_of(key)
        holders = sorted(
            name
            for name, peer in self._peers.items()
            if peer.bloom_filter is not None and peer.bloom_filter.has(probes) and peer.backoff.is_over(now)
        )
        # The last digits of a key are not used by the filters, so false positives do not bias the choice.
        first = int(key[-8:], 16) % max(len(holders), 1)
        return holders[first:] + holders[:first]

    def _is_wanted(self, peer: _Peer, now: float) -> bool:
        return not self._is_fresh(peer, now) and peer.backoff.is_over(now)

    def _is_fresh(self, peer: _Peer, now: float) -> bool:
        return peer.bloom_filter is not None and now - peer.built_at < self.fresh_s
