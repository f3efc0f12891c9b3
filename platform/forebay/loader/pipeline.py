"""One epoch's batches, made in a thread ahead of the trainer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.cache.source import BlockSource
from forebay.errors import LoaderClosed
from forebay.foreign_code import outcome_of
from forebay.loader.batch import Batch
from forebay.loader.batch_queue import BatchQueue
from forebay.loader.block_table import BlockTable, as_tensors
from forebay.loader.buffers import BufferPool
from forebay.loader.prefetch import Prefetcher
from forebay.loader.rank_batches import Cut, RankPart, parts_in_order
from forebay.loader.serial_executor import SerialExecutor
from forebay.metrics import Counters
from forebay.plan.lanes import LaneRows
from forebay.plan.plan import Last, Plan
from forebay.transform.block import Block
from forebay.world import World

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """What one rank reads: its part of every global batch."""

    plan: Plan
    world: World
    global_batch: int
    last: Last
    as_numpy: bool
    prefetch_bytes: int


class Pipeline:
    """The batches of `share` from a position to the end of the epoch.

    The gathering thread is one: a gather runs at memory speed without the GIL, and a second one would take a core from
    the trainer. Half of `prefetch_bytes` bounds the blocks asked for ahead of need, half the finished batches.
    """

    def __init__(
        self, share: LoaderOptions, source: BlockSource, pool: BufferPool, tally: Counters, *, epoch: int, position: int
    ) -> None:
        self._share, self._source, self._tally = share, source, tally
        self._epoch, self._position = epoch, position
        self.start = epoch, position
        plan = share.plan
        self._demand = Prefetcher(
            plan,
            source,
            epoch=epoch,
            position=position,
            lanes=plan.owned_lanes(share.world),
            budget_bytes=share.prefetch_bytes // 2,
        )
        self._resident = BlockTable(plan.manifest.rows, pool)
        self._ready = BatchQueue(share.prefetch_bytes // 2)
        self.has_made_all = False
        """Whether every batch is ready or was handed out."""
        self._thread = threading.Thread(target=self._run, name="forebay-gather", daemon=True)
        self._thread.start()

    def next(self) -> Batch | None:
        """The next batch, or None after the last; raises whatever ended the epoch early."""
        return self._ready.get()

    def close(self, timeout_s: float) -> None:
        """Stop within `timeout_s`, even if a read is stuck; once closed, nothing more is waited for."""
        if self._ready.closed:
            return
        deadline = time.monotonic() + timeout_s
        self._ready.close()
        self._source.close(timeout_s)
        self._thread.join(max(deadline - time.monotonic(), 0))

    def _run(self) -> None:
        error = outcome_of(self._make_all).error
        if error is not None and not isinstance(error, LoaderClosed) and not self._ready.closed:
            self._ready.put(error)

    def _make_all(self) -> None:
        self._make_batches()
        self.has_made_all = True
        self._ready.put(None)

    def _make_batches(self) -> None:
        plan, share = self._share.plan, self._share
        cut = Cut(share.global_batch, share.last, share.world)
        with closing(SerialExecutor()) as planner:
            parts = parts_in_order(plan, cut, planner, epoch=self._epoch, position=self._position)
            while part := self._next_part(parts, planner):
                rows, world_size = part.rows, share.world.size
                # A rank without rows still steps, on a real row that counts for nothing: zeros could turn into NaNs.
                weight = len(rows.row) * world_size / part.size
                if not weight:
                    rows = plan.rows(self._epoch, part.position, part.position + 1, (part.position % plan.lanes,))
                batch, num_bytes = self._gather(rows, position=part.position, size=part.size, weight=weight)
                stop = part.position + part.size
                batch.ends_epoch = not plan.batch_size(stop, share.global_batch, last=share.last)
                self._ready.put(batch, num_bytes)

    def _next_part(self, parts: Iterator[RankPart], planner: SerialExecutor) -> RankPart | None:
        with self._tally.timed("plan_s"):
            part = next(parts, None)
            if part:
                released = self._demand.advance(part.position, part.position + part.size)
                blocks = [self._resident.remove(block) for block in released]
                # To unmap a block takes as long as to gather some hundred rows of it.
                planner.submit(blocks.clear)
        return part

    def _gather(self, rows: LaneRows, *, position: int, size: int, weight: float) -> tuple[Batch, int]:
        made, borrowed = self._gathered(rows), []
        if made is None:
            borrowed = self._fetch(rows)
            made = self._gathered(rows)
            assert made is not None, "its blocks were added"
        arrays, num_bytes = made
        for block in borrowed:
            self._resident.remove(block)
        tensors = arrays if self._share.as_numpy else as_tensors(arrays)
        batch = Batch(dict(tensors), position=position, size=size, rows=len(rows.row) if weight else 0, weight=weight)
        batch.epoch = self._epoch
        return batch, num_bytes

    def _gathered(self, rows: LaneRows) -> tuple[dict[str, NDArray[np.generic]], int] | None:
        with self._tally.timed("gather_s"):
            return self._resident.gather(rows)

    def _fetch(self, rows: LaneRows) -> list[int]:
        """Wait for the blocks of `rows` that are missing; returns those that are here for these rows only."""
        with self._tally.timed("block_wait_s"):
            missing = self._resident.missing(rows)
            for block in missing:
                made = self._wait(self._demand.future(block))
                self._demand.learn(made)
                self._resident.add(block, made)
        return [block for block in missing if not self._demand.wants(block)]  # borrowed for a dummy row

    def _wait(self, future: Future[Block]) -> Block:
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except NotYet:
                if future.done():
                    return future.result()
                if self._ready.closed:
                    raise LoaderClosed("The loader was closed while it waited for a block.") from None
