"""Batches of one rank in one epoch.

Gathered from blocks in the calling thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
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
from forebay.data.loader.device.feed import JoinedBatches
from forebay.data.loader.device.host_tensors import HostTensors
from forebay.data.loader.gather_threads import GatherThreads, local_ranks
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
from forebay.errors import LoaderClosed, SourceChanged, TransformFailed
from forebay.runtime.memory.available import available_bytes, machine_bytes
from forebay.runtime.memory.file_map import FileMap
from forebay.runtime.memory.pool import BufferPool
from forebay.runtime.metrics import Counters
from forebay.world import World

_POLL_S = 0.2
_MOST_JOINED = 8
_JOINED_BYTES = 32 << 20
_SHARE_AHEAD = 1 / 16
"""Share of the free memory for blocks ahead of need. Most are files of the cache, which the kernel can drop."""
_DEVICE_ALIGNMENT = 512
"""Bytes to which torch aligns tensors on a GPU. Kernels choose their algorithm by it, and joined batches keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options of one rank's loader, the same for all epochs."""

    data: Data
    world: World
    as_numpy: bool
    prefetch_bytes: int
    is_auto: bool = False
    """Whether `prefetch_bytes` was left open: more blocks may be requested ahead where there is memory for them."""
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

    Small batches for a device are gathered and copied together, up to eight, as long as the trainer has as many ahead:
    for each gather and copy, this thread takes the GIL from the trainer ten times.

    Args:
        options: Options of the loader.
        blocks: Source of the blocks. Waiting for one ends once it is closed.
        ahead: Counts the finished batches that the trainer has not taken.
        pool: Memory of the batches.
        threads: Those that gather a batch.
        counters: Receives the counters.
        start: Epoch and position.
    """

    def __init__(  # noqa: PLR0913 - the parts of a pipeline, which makes it
        self,
        options: LoaderOptions,
        blocks: OpenBlocks,
        pool: BufferPool,
        threads: GatherThreads,
        counters: Counters,
        *,
        start: tuple[int, int],
        ahead: Callable[[], int],
    ) -> None:
        self._options, self._is_closed, self._counters, self._ahead = options, blocks.is_closed, counters, ahead
        self._epoch, self._position = start
        plan = options.data.plan
        self._lanes = plan.owned_lanes(options.world)
        self._prefetcher = Prefetcher(
            plan,
            blocks,
            start=start,
            lanes=self._lanes,
            budget_bytes=options.prefetch_bytes // 2,
            most_bytes=_most_ahead(options.world.size) if options.is_auto else 0,
        )
        self._table = _table_of(options, pool, threads, self._epoch)
        augment = as_augment(options.data.augment)
        self._augmented = None if augment is None else AugmentedRows(augment, plan, pool, epoch=self._epoch)
        self._sources = _source_numbers(plan)
        self._host = None if options.device is None else HostTensors()
        self._following: deque[RankPart] = deque()

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
        while group := self._next_parts(parts, executor):
            if len(group) > 1 and (made := self._ready(group)):
                yield from self._joined(group, made, cut, keys)
            else:
                self._following.extendleft(reversed(group[1:]))
                yield self._batch(group[0], cut, keys)

    def _batch(self, part: RankPart, cut: Cut, keys: Sequence[StepColumns]) -> tuple[Batch, int]:
        plan, rows, world = self._options.data.plan, part.rows, cut.world
        # A rank without rows also steps, on a real row of weight 0: a row of zeros could become NaN.
        weight = len(rows.row) * world.size / part.size
        stop, lanes = part.position + part.size, self._lanes
        if not weight:
            stop, lanes = part.position + 1, tuple(range(plan.lanes))
            rows = plan.positioned_rows(self._epoch, part.position, stop, lanes)
        batch, num_bytes = self._gather(rows, position=part.position, size=part.size, weight=weight)
        batch.set_file_rows(partial(_named_rows, plan, keys, (self._epoch, part.position, stop), lanes))
        batch.ends_epoch = self._is_last(part, cut)
        return batch, num_bytes

    def _is_last(self, part: RankPart, cut: Cut) -> bool:
        return not self._options.data.plan.batch_size(part.position + part.size, cut.global_batch, last=cut.last)

    def _next_parts(self, parts: Iterator[RankPart], executor: SerialExecutor) -> list[RankPart]:
        """Parts of one batch, or of those that are joined."""
        with self._counters.timed("plan_s"):
            part = self._following.popleft() if self._following else next(parts, None)
            if part is None:
                return []
            group, most = [part], self._most_joined(part)
            while len(group) < most:
                following = self._following.popleft() if self._following else next(parts, None)
                if following is None:
                    break
                if following.planned is not part.planned or len(following.rows.row) != len(part.rows.row):
                    self._following.appendleft(following)
                    break
                group.append(following)
            released = self._prefetcher.advance(part.position, group[-1].position + group[-1].size)
            if released:
                blocks = [self._table.remove(block) for block in released]
                # Unmapping a block takes as long as gathering some hundred of its rows.
                executor.submit(_free, blocks)
        return group

    def _most_joined(self, part: RankPart) -> int:
        """Number of batches to join from `part` on."""
        table, num_rows = self._table, len(part.rows.row)
        if self._host is None or self._augmented or self._sources is not None or isinstance(table, WindowTables):
            return 1
        if not num_rows or not table.row_bytes or table.lists:
            return 1
        most_bytes = min(_JOINED_BYTES, self._options.prefetch_bytes // 16)
        held = _aligned_rows(num_rows, table.row_bytes)
        if held > 2 * num_rows:
            return 1
        return min(_MOST_JOINED, most_bytes // max(held * sum(table.row_bytes), 1), self._ahead())

    def _ready(self, group: Sequence[RankPart]) -> tuple[dict[str, NDArray[np.generic]], int] | None:
        """Gathered rows of `group`.

        None where a block must be waited for, or has failed: the trainer may want the batches before.
        """
        assert not isinstance(self._table, WindowTables)
        part, num_rows = group[0], len(group[0].rows.row)
        held = _aligned_rows(num_rows, self._table.row_bytes)
        taken: Any = slice(part.begin, part.begin + len(group) * num_rows)
        if held != num_rows:  # the last row of each batch again, up to a multiple of the alignment
            starts = part.begin + num_rows * np.arange(len(group))
            taken = (starts[:, None] + np.minimum(np.arange(held), num_rows - 1)).ravel()
        rows = PositionedRows(*(column[taken] for column in part.planned))
        made = self._gathered(rows)
        if made is None and all(_has_come(self._prefetcher.future(block)) for block in self._table.missing(rows)):
            with suppress(SourceChanged, TransformFailed):  # of a block that does not fit those before it
                self._fetch(rows)
                made = self._gathered(rows)
        return made

    def _joined(
        self,
        group: Sequence[RankPart],
        made: tuple[dict[str, NDArray[np.generic]], int],
        cut: Cut,
        keys: Sequence[StepColumns],
    ) -> Iterator[tuple[Batch, int]]:
        assert self._host is not None
        (arrays, num_bytes), count, begin = made, len(group[0].rows.row), 0
        held = len(next(iter(arrays.values()))) // len(group)
        whole = Batch(self._host.of(arrays))
        whole.memory = arrays
        joined = JoinedBatches(whole)
        for part in group:
            weight, stop = count * cut.world.size / part.size, part.position + part.size
            batch = Batch(position=part.position, size=part.size, num_rows=count, weight=weight)
            batch.epoch, batch.joined = self._epoch, (joined, slice(begin, begin + count))
            span = self._epoch, part.position, stop
            batch.set_file_rows(partial(_named_rows, self._options.data.plan, keys, span, self._lanes))
            batch.ends_epoch = self._is_last(part, cut)
            begin += held
            yield batch, num_bytes // len(group)

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
            with self._counters.timed("augment_s"):
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
        with self._counters.timed("gather_s"):
            return self._table.gather(rows)

    def _fetch(self, rows: PositionedRows) -> list[int]:
        """Wait for the missing blocks of `rows`.

        Returns the blocks that only these rows need.
        """
        with self._counters.timed("block_wait_s"):
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


def _aligned_rows(num_rows: int, row_bytes: Sequence[int]) -> int:
    """Rows of a batch in joined ones: the next number whose arrays end at multiples of the alignment.

    >>> _aligned_rows(8192, [400, 4]), _aligned_rows(375, [400, 4])
    (8192, 384)
    """
    step = max((_DEVICE_ALIGNMENT // math.gcd(_DEVICE_ALIGNMENT, each) for each in row_bytes if each), default=1)
    return -(-num_rows // step) * step


def _most_ahead(world_size: int) -> int:
    """Bytes of blocks that one rank may request ahead, whatever its windows hold."""
    return int(min(available_bytes(), machine_bytes()) * _SHARE_AHEAD / local_ranks(world_size))


def _has_come(block: Future[Block]) -> bool:
    return block.done() and not block.cancelled() and block.exception() is None


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
