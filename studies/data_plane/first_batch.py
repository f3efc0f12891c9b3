"""Time until the last node has its first batch after a restart, on a simulated clock.

A node asks for its blocks in the order of need, `reads` at a time: on its disk, at the peer that has it, and else at
the source. A peer with too many open requests says no, as the product does.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice

from studies.data_plane.herd import LATENCY_S, ThrottledStore
from studies.data_plane.lake import GROUP_BYTES, GROUPS_PER_FILE

from forebay.data.cache.node.service import NUM_THREADS, open_requests
from forebay.data.plan.plan import Plan
from forebay.storage.retry import DEFAULT_POLICY, ReadPace
from forebay.world import World

BLOCK_BYTES = 2 * GROUP_BYTES
LINK_BYTES_PER_S = 3e9
"""25 Gbit/s of each node."""
SOURCE_BYTES_PER_S = 100e6
"""One connection to the source."""
COPY_S = 0.02
"""A block from a peer's disk into its object store, in one of its threads."""
MOST_OPEN = open_requests(BLOCK_BYTES)
"""Requests that a peer accepts at once. All others are read from the source."""
REQUESTS = 3
"""Of a row group. A footer that the node has not read is one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStart:
    """First blocks of a node in the order of need. `first`: of the first batch."""

    blocks: Sequence[int]
    first: Collection[int]


def needs_of(plan: Plan, rank: int, nodes: int, ahead: int, global_batch: int) -> NodeStart:
    """First `ahead` spans of a rank."""
    spans = [*islice(plan.block_spans(0, 0, plan.owned_lanes(World(rank=rank, size=nodes))), ahead)]
    first = {span.block for span in spans if span.need < global_batch}
    return NodeStart(blocks=[*dict.fromkeys(span.block for span in spans)], first=first)


@dataclass
class StartCounts:
    """Counts until all nodes had their first blocks.

    Attributes:
        last_s: Time at which the last node had its first batch.
        source_blocks: Row groups read at the source, and of them those that a peer has.
        requests: Requests to the source, and of them those that it refused.
        busiest_open: Most requests at a peer at once. `busy`: requests to a peer that had too many.
    """

    last_s: float = 0.0
    source_blocks: int = 0
    read_again: int = 0
    requests: int = 0
    refused: int = 0
    from_peers: int = 0
    busy: int = 0
    busiest_open: int = 0


@dataclass
class _BusyPeer:
    threads: list[float] = field(default_factory=lambda: [0.0] * NUM_THREADS)
    line: float = 0.0
    open: int = 0

    def send(self, now: float) -> tuple[float, float]:
        """Times at which its lookup ends, and at which the block has arrived."""
        copied = max(heapq.heappop(self.threads), now) + COPY_S
        heapq.heappush(self.threads, copied)
        self.line = max(self.line, copied) + BLOCK_BYTES / LINK_BYTES_PER_S
        return copied, self.line


class StartSimulation:
    """Nodes that fetch their first blocks, once they have the filters of the others.

    `held` are the blocks on the disk of each node.
    """

    def __init__(
        self, needs: Sequence[NodeStart], held: Sequence[Collection[int]], *, reads: int, most_open: int = MOST_OPEN
    ) -> None:
        self._most_open = most_open
        self.now, self.counts = 0.0, StartCounts()
        self._draw = random.Random(0).random  # noqa: S311 - no secret
        self._holders: dict[int, list[int]] = {}
        for node, blocks in enumerate(held):
            for block in blocks:
                self._holders.setdefault(block, []).append(node)
        self._peers, self._store = [_BusyPeer() for _ in held], ThrottledStore()
        self._paces = [ReadPace(lambda: self.now, self._draw) for _ in held]
        self._footers = set[tuple[int, int]]()
        self._left = [
            deque(block for block in need.blocks if block not in held[node]) for node, need in enumerate(needs)
        ]
        self._missing = [set(need.first) - set(held[node]) for node, need in enumerate(needs)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        for node in range(len(needs)):
            for _ in range(reads):
                self._at(self._draw() * LATENCY_S, lambda node=node: self._next(node))

    def run(self) -> StartCounts:
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()
        return self.counts

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, act))

    def _next(self, node: int) -> None:
        if not self._left[node]:
            return
        block = self._left[node].popleft()
        holders = self._holders.get(block, ())
        if not (holders and self._asks(node, block, holders[block % len(holders)])):
            self.counts.read_again += bool(holders)
            self._reads(node, block)

    def _asks(self, node: int, block: int, holder: int) -> bool:
        peer = self._peers[holder]
        if peer.open >= self._most_open:
            self.counts.busy += 1
            return False
        peer.open += 1
        self.counts.from_peers += 1
        self.counts.busiest_open = max(self.counts.busiest_open, peer.open)
        copied, arrived = peer.send(self.now)

        def answered() -> None:
            peer.open -= 1

        self._at(copied, answered)
        self._at(arrived, lambda: self._arrived(node, block))
        return True

    def _reads(self, node: int, block: int) -> None:
        footer = (node, block // GROUPS_PER_FILE)
        requests = REQUESTS + (footer not in self._footers)
        self._footers.add(footer)
        self.counts.source_blocks += 1
        self._at(self.now + self._paces[node].wait_s(), lambda: self._requests(node, block, requests))

    def _requests(self, node: int, block: int, left: int) -> None:
        self.counts.requests += 1
        pace = self._paces[node]
        if not self._store.takes(self.now):
            self.counts.refused += 1
            pace.record_throttled(self.now, first_s=DEFAULT_POLICY.first_wait_s, longest_s=DEFAULT_POLICY.max_wait_s)
            self._at(self.now + LATENCY_S + pace.wait_s(), lambda: self._requests(node, block, left))
        elif left > 1:
            self._at(self.now + LATENCY_S, lambda: self._requests(node, block, left - 1))
        else:
            pace.record_success()
            self._at(self.now + LATENCY_S + GROUP_BYTES / SOURCE_BYTES_PER_S, lambda: self._arrived(node, block))

    def _arrived(self, node: int, block: int) -> None:
        if block in self._missing[node]:
            self._missing[node].remove(block)
            if not self._missing[node]:
                self.counts.last_s = self.now
        self._next(node)
