"""Batches of one epoch, made in a thread ahead of the trainer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.cache.source import BlockSource
from forebay.errors import LoaderClosed
from forebay.foreign_code import outcome_of
from forebay.kernels import calls as kernels
from forebay.loader.batch import Batch
from forebay.loader.batch_queue import BatchQueue
from forebay.loader.block_table import BlockTable, as_tensors
from forebay.loader.buffers import BufferPool
from forebay.loader.device.copies import open_copies
from forebay.loader.device.feed import DeviceFeed
from forebay.loader.prefetch import Prefetcher
from forebay.loader.rank_batches import Cut, RankPart, parts_in_order
from forebay.loader.rows.augmented_rows import AugmentedRows
from forebay.loader.rows.order_rows import OrderRows
from forebay.loader.sequences.window_tables import WindowTables
from forebay.loader.serial_executor import SerialExecutor
from forebay.manifest.rows.file_rows import FileRows
from forebay.manifest.rows.file_windows import FileWindows
from forebay.metrics import Counters
from forebay.plan.order import Last, Order, PositionedRows
from forebay.transform.augment import Augment
from forebay.transform.block import Block
from forebay.transform.sequences.sequence_block import SequenceTransform
from forebay.transform.sequences.step_columns import StepColumns
from forebay.world import World

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options of one rank's loader, the same for all epochs."""

    plan: Order
    world: World
    global_batch: int
    last: Last
    as_numpy: bool
    prefetch_bytes: int
    device: torch.device | None = None
    """Device of the batches. None: main memory."""
    sequences: tuple[SequenceTransform, ...] = ()
    """Transform of each data set, if the rows of the plan are windows."""
    augment: Augment | None = None
    """Function that changes gathered rows."""


class Pipeline:
    """Batches of one rank from a position to the end of the epoch.

    One thread gathers: a gather runs at memory speed without the GIL, and a second thread would take a core from the
    trainer. It also calls the augment on rows that it gathered. Half of `prefetch_bytes` bounds the blocks requested
    ahead of need, half the finished batches.
    """

    def __init__(
        self,
        options: LoaderOptions,
        source: BlockSource,
        pool: BufferPool,
        tally: Counters,
        *,
        epoch: int,
        position: int,
    ) -> None:
        self._options, self._source, self._tally = options, source, tally
        self._epoch, self._position = epoch, position
        self.start = epoch, position
        plan = options.plan
        kernels.load()  # before the first thread
        self._prefetcher = Prefetcher(
            plan,
            source,
            epoch=epoch,
            position=position,
            lanes=plan.owned_lanes(options.world),
            budget_bytes=options.prefetch_bytes // 2,
        )
        self._table = _table_of(options, pool, epoch)
        self._augmented = None if options.augment is None else AugmentedRows(options.augment, plan, pool, epoch=epoch)
        self._sources = _source_numbers(plan)
        self._queue = BatchQueue(options.prefetch_bytes // 2)
        device = options.device
        self._feed = None if device is None else DeviceFeed(self._queue, open_copies(device), tally)
        self.has_made_all = False
        """Whether every batch of the epoch is finished."""
        self._thread = threading.Thread(target=self._run, name="forebay-gather", daemon=True)
        self._thread.start()

    def next(self) -> Batch | None:
        """Return the next batch, or None after the last, and count it. Raises the error that ended the epoch early."""
        # The trainer waits for all of this, with cold CPU caches: one call that counts all takes half of the time.
        asked = time.perf_counter()
        if self._feed is not None:
            batch, counted = self._feed.next(), {}
        else:
            batch = self._queue.get()
            counted = {"wait_s": time.perf_counter() - asked}
        if batch is not None:
            counted |= {"batches": 1, "rows": batch.num_rows}
        self._tally.merge(counted)
        return batch

    def close(self, timeout_s: float) -> None:
        """Stop within `timeout_s`, even if a read is stuck. A second call returns at once."""
        if self._queue.closed:
            return
        deadline = time.monotonic() + timeout_s
        self._queue.close()
        self._source.close(timeout_s)
        self._thread.join(max(deadline - time.monotonic(), 0))

    def _run(self) -> None:
        error = outcome_of(self._make_all).error
        if error is not None and not isinstance(error, LoaderClosed) and not self._queue.closed:
            self._queue.put(error)

    def _make_all(self) -> None:
        self._make_batches()
        self.has_made_all = True
        self._queue.put(None)

    def _make_batches(self) -> None:
        plan, options = self._options.plan, self._options
        keys = tuple(each.step_columns.keys() for each in options.sequences)
        cut, owned = Cut(options.global_batch, options.last, options.world), plan.owned_lanes(options.world)
        with closing(SerialExecutor()) as executor:
            parts = parts_in_order(plan, cut, executor, epoch=self._epoch, position=self._position)
            while part := self._next_part(parts, executor):
                rows, world_size = part.rows, options.world.size
                # A rank without rows also steps, on a real row of weight 0: a row of zeros could become NaN.
                weight = len(rows.row) * world_size / part.size
                stop, lanes = part.position + part.size, owned
                if not weight:
                    stop, lanes = part.position + 1, tuple(range(plan.lanes))
                    rows = plan.positioned_rows(self._epoch, part.position, stop, lanes)
                batch, num_bytes = self._gather(rows, position=part.position, size=part.size, weight=weight)
                batch.set_file_rows(partial(_named_rows, plan, keys, (self._epoch, part.position, stop), lanes))
                end = part.position + part.size
                batch.ends_epoch = not plan.batch_size(end, options.global_batch, last=options.last)
                self._queue.put(batch, num_bytes)

    def _next_part(self, parts: Iterator[RankPart], executor: SerialExecutor) -> RankPart | None:
        with self._tally.timed("plan_s"):
            part = next(parts, None)
            if part:
                released = self._prefetcher.advance(part.position, part.position + part.size)
                if released:
                    blocks = [self._table.remove(block) for block in released]
                    # Unmapping a block takes as long as gathering some hundred of its rows.
                    executor.submit(blocks.clear)
        return part

    def _gather(self, rows: PositionedRows, *, position: int, size: int, weight: float) -> tuple[Batch, int]:
        made, borrowed = self._gathered(rows), []
        if made is None:
            borrowed = self._fetch(rows)
            made = self._gathered(rows)
            assert made is not None, "its blocks were added"
        arrays, num_bytes = made
        for block in borrowed:
            self._table.remove(block)
        if self._augmented is not None:
            with self._tally.timed("augment_s"):
                arrays, num_bytes = self._augmented.apply(arrays, num_bytes, rows)
        tensors = arrays if self._options.as_numpy else as_tensors(arrays)
        num_rows = len(rows.row) if weight else 0
        batch = Batch(dict(tensors), position=position, size=size, num_rows=num_rows, weight=weight)
        batch.epoch = self._epoch
        if self._sources is not None:
            source, batch.names = self._sources[rows.block], self._options.plan.names
            batch.source = source if self._options.as_numpy else torch.from_numpy(source)
        if isinstance(self._table, WindowTables):
            window_ids = self._table.window_ids(rows)
            batch.windows = window_ids if self._options.as_numpy else partial(_tensor, window_ids)
        else:
            batch.lists = self._table.lists
        return batch, num_bytes

    def _gathered(self, rows: PositionedRows) -> tuple[dict[str, NDArray[np.generic]], int] | None:
        with self._tally.timed("gather_s"):
            return self._table.gather(rows)

    def _fetch(self, rows: PositionedRows) -> list[int]:
        """Wait for the missing blocks of `rows`. Returns the blocks that only these rows need."""
        with self._tally.timed("block_wait_s"):
            missing = self._table.missing(rows)
            for block in missing:
                made = self._wait(self._prefetcher.future(block))
                self._prefetcher.record_block_size(made)
                # The first size makes room. Until the window was complete, a distant store waited for requests.
                self._prefetcher.request_ahead()
                self._table.add(block, made)
        return [block for block in missing if not self._prefetcher.is_needed(block)]  # Borrowed for a dummy row.

    def _wait(self, future: Future[Block]) -> Block:
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except NotYet:
                if future.done():
                    return future.result()
                if self._queue.closed:
                    raise LoaderClosed("The loader was closed while it waited for a block.") from None


def _table_of(options: LoaderOptions, pool: BufferPool, epoch: int) -> BlockTable | WindowTables:
    if options.plan.windows:
        return WindowTables(options.plan, [each.views for each in options.sequences], pool, epoch=epoch)
    return BlockTable(options.plan.block_rows, pool)


def _named_rows(
    plan: Order, keys: Sequence[StepColumns], span: tuple[int, int, int], lanes: Sequence[int]
) -> FileRows | FileWindows:
    return OrderRows.at(plan, keys, [span], lanes).named()


def _tensor(make: Callable[[], NDArray[np.int64]]) -> torch.Tensor:
    return torch.from_numpy(make())


def _source_numbers(plan: Order) -> NDArray[np.int16] | None:
    """Number of the data set of each block, int16 [blocks]. None without names."""
    lengths = [len(manifest) for manifest in plan.manifests]
    return np.repeat(np.arange(len(lengths), dtype=np.int16), lengths) if plan.names else None
