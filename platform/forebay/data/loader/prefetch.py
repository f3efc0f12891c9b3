"""Requests for the blocks of a rank, ahead of need."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from forebay.data.plan.order import BlockSpan, Order
from forebay.data.transform.block import Block

_LEAST_AHEAD = 2


class Blocks(Protocol):
    """Source of blocks, by their number in the plan."""

    def request(self, index: int) -> Future[Block]: ...


class Prefetcher:
    """Requests a rank's blocks in the order of need.

    Blocks of the current windows are requested whatever their size: the order cannot continue without them. Other
    blocks are requested ahead of need while their bytes stay within `budget_bytes`. At least two are requested, so that
    even the largest are fetched while others are used. The bytes of a row are estimated from blocks that have arrived:
    the size in Parquet is a poor estimate.
    """

    def __init__(
        self, plan: Order, blocks: Blocks, *, epoch: int, position: int, lanes: Sequence[int], budget_bytes: int
    ) -> None:
        self._block_rows, self._blocks, self._budget_bytes = plan.block_rows, blocks, budget_bytes
        self._spans = plan.block_spans(epoch, position, lanes)
        self._next = next(self._spans, None)
        self._ahead: deque[BlockSpan] = deque()
        self._ahead_rows = self._known_rows = self._known_bytes = 0
        self._releases: list[tuple[int, int]] = []
        self._users: dict[int, int] = {}
        self._futures: dict[int, Future[Block]] = {}

    def record_block_size(self, block: Block) -> None:
        """Record the size of an arrived block.

        The estimate of the bytes of a row uses it.
        """
        self._known_rows += block.rows
        self._known_bytes += block.nbytes

    def advance(self, start: int, stop: int) -> list[int]:
        """Request the blocks of positions `start` to `stop`.

        Requests more ahead. Returns the blocks that are released.
        """
        released = self._release(start)
        while self._ahead and self._ahead[0].need < stop:
            self._ahead_rows -= self._rows(self._ahead.popleft())
        while self._next is not None and self._next.need < stop:
            self._request(self._next)
        self.request_ahead()
        return released

    def request_ahead(self) -> None:
        """Request more blocks ahead of need, if there is room."""
        while self._next is not None and self._has_room(self._next):
            self._ahead.append(self._next)
            self._ahead_rows += self._rows(self._next)
            self._request(self._next)

    def future(self, block: int) -> Future[Block]:
        """Pending block.

        A block outside this rank's lanes is requested now.
        """
        return self._futures.get(block) or self._blocks.request(block)

    def is_needed(self, block: int) -> bool:
        """Whether a requested span still uses the block."""
        return block in self._users

    def _request(self, span: BlockSpan) -> None:
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

    def _has_room(self, span: BlockSpan) -> bool:
        if len(self._ahead) < _LEAST_AHEAD:
            return True
        rows = self._ahead_rows + self._rows(span)
        return self._known_rows > 0 and rows * self._known_bytes <= self._budget_bytes * self._known_rows

    def _rows(self, span: BlockSpan) -> int:
        return int(self._block_rows[span.block])
