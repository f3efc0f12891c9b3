"""Which blocks a rank needs, from when until when, and how many to ask for ahead of time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from forebay.plan.plan import Plan
from forebay.transform.block import Block


class Blocks(Protocol):
    """Where blocks are asked for, by their index in the manifest."""

    def request(self, index: int) -> Future[Block]: ...


class Span(NamedTuple):
    """A block is needed by global batches that reach past position `need`, and by none from position `release` on."""

    need: int
    release: int
    block: int


class Demand:
    """Requests the blocks of a rank's lanes in the order of need.

    What the current windows hold is asked for whatever its size: the order cannot go on without it. Beyond that, blocks
    are asked for ahead of need while their bytes stay within `budget_bytes`.
    """

    def __init__(
        self, plan: Plan, blocks: Blocks, *, epoch: int, position: int, lanes: range, budget_bytes: int
    ) -> None:
        self._plan, self._blocks, self._budget_bytes = plan, blocks, budget_bytes
        self._spans = heapq.merge(*(_lane_spans(plan, epoch, position, lane) for lane in lanes))
        self._next = next(self._spans, None)
        self._ahead: deque[Span] = deque()
        self._releases: list[tuple[int, int]] = []
        self._users: dict[int, int] = {}
        self._futures: dict[int, Future[Block]] = {}
        self.ahead_bytes = 0

    def advance(self, start: int, stop: int) -> list[int]:
        """Ask for what the rows at positions `start` to `stop` need and for more ahead; returns the blocks let go."""
        released = self._release(start)
        while self._ahead and self._ahead[0].need < stop:
            self.ahead_bytes -= self._bytes(self._ahead.popleft())
        while self._next is not None and self._next.need < stop:
            self._request(self._next)
        while self._next is not None and self.ahead_bytes + self._bytes(self._next) <= self._budget_bytes:
            self._ahead.append(self._next)
            self.ahead_bytes += self._bytes(self._next)
            self._request(self._next)
        return released

    def future(self, block: int) -> Future[Block]:
        """The pending block; a block outside this rank's lanes is asked for now."""
        return self._futures.get(block) or self._blocks.request(block)

    def wants(self, block: int) -> bool:
        return block in self._users

    def _request(self, span: Span) -> None:
        if span.block not in self._users:
            self._users[span.block] = 0
            self._futures[span.block] = self._blocks.request(span.block)
        self._users[span.block] += 1
        heapq.heappush(self._releases, (span.release, span.block))
        self._next = next(self._spans, None)

    def _release(self, start: int) -> list[int]:
        released = []
        while self._releases and self._releases[0][0] <= start:
            block = heapq.heappop(self._releases)[1]
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block], self._futures[block]
                released.append(block)
        return released

    def _bytes(self, span: Span) -> int:
        return int(self._plan.manifest.bytes[span.block])


def _lane_spans(plan: Plan, epoch: int, position: int, lane: int) -> Iterator[Span]:
    for block, need, release in plan.spans(epoch, lane):
        # Lane rows `need` to `release` lie at positions row * lanes + lane.
        if (span := Span(need * plan.lanes + lane, release * plan.lanes + lane, block)).release > position:
            yield span
