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
    blocks are requested ahead of need while their bytes stay within `budget_bytes`, or within those of the current
    windows, up to `most_bytes`: all lanes come to their next windows together, and what is not there by then is waited
    for. At least two are requested, so that even the largest are fetched while others are used. The bytes of a row are
    estimated from blocks that have arrived: the size in Parquet is a poor estimate.

    `start`: epoch and position.
    """

    def __init__(
        self,
        plan: Order,
        blocks: Blocks,
        *,
        start: tuple[int, int],
        lanes: Sequence[int],
        budget_bytes: int,
        most_bytes: int = 0,
    ) -> None:
        self._block_rows, self._blocks = plan.block_rows, blocks
        self._budget_bytes, self._most_bytes = budget_bytes, most_bytes
        self._spans = plan.block_spans(*start, lanes)
        self._next = next(self._spans, None)
        self._ahead: deque[BlockSpan] = deque()
        self._ahead_rows = self._held_rows = self._known_rows = self._known_bytes = 0
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
            self._ahead_rows -= self._rows(self._ahead.popleft().block)
        while self._next is not None and self._next.need < stop:
            self._request(self._next)
        self.request_ahead()
        return released

    def request_ahead(self) -> None:
        """Request more blocks ahead of need, if there is room."""
        while self._next is not None and self._has_room(self._next):
            self._ahead.append(self._next)
            self._ahead_rows += self._rows(self._next.block)
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
        self._held_rows += self._rows(span.block)
        heapq.heappush(self._releases, (span.release, span.block))
        self._next = next(self._spans, None)

    def _release(self, start: int) -> list[int]:
        released = []
        while self._releases and self._releases[0][0] <= start:
            block = heapq.heappop(self._releases)[1]
            self._users[block] -= 1
            self._held_rows -= self._rows(block)
            if not self._users[block]:
                del self._users[block], self._futures[block]
                released.append(block)
        return released

    def _has_room(self, span: BlockSpan) -> bool:
        if len(self._ahead) < _LEAST_AHEAD:
            return True
        if not self._known_rows:
            return False
        row_bytes = self._known_bytes / self._known_rows
        window_bytes = (self._held_rows - self._ahead_rows) * row_bytes
        limit = max(self._budget_bytes, min(self._most_bytes, window_bytes))
        return (self._ahead_rows + self._rows(span.block)) * row_bytes <= limit

    def _rows(self, block: int) -> int:
        return int(self._block_rows[block])
