"""Batches of one rank in one epoch.

Gathered from blocks in the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.data.loader.augmented_rows import AugmentedRows
from forebay.data.loader.batch import Batch
from forebay.data.loader.block_table import BlockTable, as_tensors
from forebay.data.loader.data import Data
from forebay.data.loader.device.host_tensors import HostTensors
from forebay.data.loader.gather_threads import GatherThreads
from forebay.data.loader.prefetch import Blocks, Prefetcher
from forebay.data.loader.rank_batches import Cut, RankPart, SerialExecutor, parts_in_order
from forebay.data.manifest.file_rows import FileRows
from forebay.data.manifest.file_windows import FileWindows
from forebay.data.plan.order import Order, PositionedRows
from forebay.data.provenance.order_rows import OrderRows
from forebay.data.transform.augment import as_augment
from forebay.data.transform.block import Block
from forebay.data.windows.sequence_block import SequenceTransform
from forebay.data.windows.steps import StepColumns
from forebay.data.windows.window_table import WindowTables
from forebay.errors import LoaderClosed
from forebay.runtime.memory.buffers import BufferPool
from forebay.runtime.memory.file_map import FileMap
from forebay.runtime.metrics import Counters
from forebay.world import World

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options of one rank's loader, the same for all epochs."""

    data: Data
    world: World
    as_numpy: bool
    prefetch_bytes: int
    device: torch.device | None = None
    """Device of the batches. None: main memory."""
    sequences: tuple[SequenceTransform, ...] = ()
    """Transform of each dataset, if the rows of the plan are windows."""
    epochs: int | None = None
    """Number of the epoch before which iteration ends. None: not known."""


class OpenBlocks(Blocks, Protocol):
    """Source of blocks that may be closed meanwhile."""

    def is_closed(self) -> bool:
        """Whether to stop waiting for blocks."""
        ...


class GatheredEpoch:
    """Batches of a rank up to the epoch's end.

    Args:
        options: Options of the loader.
        blocks: Source of the blocks. Waiting for one ends once it is closed.
        pool: Memory of the batches.
        threads: Those that gather a batch.
        counters: Receives the counters. May be replaced between two batches.
        start: Epoch and position.
    """

    def __init__(
        self,
        options: LoaderOptions,
        blocks: OpenBlocks,
        pool: BufferPool,
        threads: GatherThreads,
        counters: Counters,
        *,
        start: tuple[int, int],
    ) -> None:
        self._options, self._is_closed, self.counters = options, blocks.is_closed, counters
        self._epoch, self._position = epoch, position = start
        plan = options.data.plan
        self._lanes = plan.owned_lanes(options.world)
        self._prefetcher = Prefetcher(
            plan,
            blocks,
            epoch=epoch,
            position=position,
            lanes=self._lanes,
            budget_bytes=options.prefetch_bytes // 2,
        )
        self._table = _table_of(options, pool, threads, epoch)
        augment = as_augment(options.data.augment)
        self._augmented = None if augment is None else AugmentedRows(augment, plan, pool, epoch=epoch)
        self._sources = _source_numbers(plan)
        self._host = None if options.device is None else HostTensors()

    def batches(self, executor: SerialExecutor) -> Iterator[tuple[Batch, int]]:
        """Batches and their bytes.

        Planning and unmapping are left to `executor`.
        """
        plan, options = self._options.data.plan, self._options
        keys = tuple(each.step_columns.keys() for each in options.sequences)
        cut = Cut(options.data.global_batch, options.data.last, options.world)
        # Before the first rows are planned: on 16 cores that took 40 ms of an epoch of 450.
        self._prefetcher.advance(self._position, self._position + 1)
        parts = parts_in_order(plan, cut, executor, epoch=self._epoch, position=self._position)
        while part := self._next_part(parts, executor):
            yield self._batch(part, cut, keys)

    def _batch(self, part: RankPart, cut: Cut, keys: Sequence[StepColumns]) -> tuple[Batch, int]:
        plan, rows, world = self._options.data.plan, part.rows, cut.world
        # A rank without rows also steps, on a real row of weight 0: a row of zeros could become NaN.
        weight = len(rows.row) * world.size / part.size
        end, stop, lanes = part.position + part.size, part.position + part.size, self._lanes
        if not weight:
            stop, lanes = part.position + 1, tuple(range(plan.lanes))
            rows = plan.positioned_rows(self._epoch, part.position, stop, lanes)
        batch, num_bytes = self._gather(rows, position=part.position, size=part.size, weight=weight)
        batch.set_file_rows(partial(_named_rows, plan, keys, (self._epoch, part.position, stop), lanes))
        batch.ends_epoch = not plan.batch_size(end, cut.global_batch, last=cut.last)
        return batch, num_bytes

    def _next_part(self, parts: Iterator[RankPart], executor: SerialExecutor) -> RankPart | None:
        with self.counters.timed("plan_s"):
            part = next(parts, None)
            if part:
                released = self._prefetcher.advance(part.position, part.position + part.size)
                if released:
                    blocks = [self._table.remove(block) for block in released]
                    # Unmapping a block takes as long as gathering some hundred of its rows.
                    executor.submit(_free, blocks)
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
            with self.counters.timed("augment_s"):
                arrays, num_bytes = self._augmented.apply(arrays, num_bytes, rows)
        if self._host is not None:
            tensors: dict[str, Any] = self._host.of(arrays)
        else:
            tensors = arrays if self._options.as_numpy else as_tensors(arrays)
        num_rows = len(rows.row) if weight else 0
        batch = Batch(dict(tensors), position=position, size=size, num_rows=num_rows, weight=weight)
        batch.epoch = self._epoch
        batch.memory = None if self._host is None else arrays
        if self._sources is not None:
            source, batch.names = self._sources[rows.block], self._options.data.plan.names
            batch.source = source if self._options.as_numpy else torch.from_numpy(source)
        if isinstance(self._table, WindowTables):
            window_ids = self._table.window_ids(rows)
            batch.windows = window_ids if self._options.as_numpy else partial(_tensor, window_ids)
        else:
            batch.lists = self._table.lists
        return batch, num_bytes

    def _gathered(self, rows: PositionedRows) -> tuple[dict[str, NDArray[np.generic]], int] | None:
        with self.counters.timed("gather_s"):
            return self._table.gather(rows)

    def _fetch(self, rows: PositionedRows) -> list[int]:
        """Wait for the missing blocks of `rows`.

        Returns the blocks that only these rows need.
        """
        with self.counters.timed("block_wait_s"):
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
                if self._is_closed():
                    raise LoaderClosed("The loader was closed while it waited for a block.") from None


def _free(blocks: list[Block | None]) -> None:
    for block in blocks:
        if block is not None and isinstance(block.owner, FileMap):
            block.owner.drop_pages()  # first, because the rest holds the GIL
    blocks.clear()


def _table_of(
    options: LoaderOptions, pool: BufferPool, threads: GatherThreads, epoch: int
) -> BlockTable | WindowTables:
    if options.data.plan.windows:
        return WindowTables(options.data.plan, [each.views for each in options.sequences], pool, epoch=epoch)
    return BlockTable(options.data.plan.block_rows, pool, threads)


def _named_rows(
    plan: Order, keys: Sequence[StepColumns], span: tuple[int, int, int], lanes: Sequence[int]
) -> FileRows | FileWindows:
    return OrderRows.at(plan, keys, [span], lanes).named()


def _tensor(make: Callable[[], NDArray[np.int64]]) -> torch.Tensor:
    return torch.from_numpy(make())


def _source_numbers(plan: Order) -> NDArray[np.int16] | None:
    """Dataset number of each block, int16 [blocks].

    None without names.
    """
    lengths = [len(manifest) for manifest in plan.manifests]
    return np.repeat(np.arange(len(lengths), dtype=np.int16), lengths) if plan.names else None
