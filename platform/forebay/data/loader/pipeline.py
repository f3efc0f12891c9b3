"""Thread that makes batches ahead of the trainer.

Epoch after epoch.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing

from forebay.data.cache.source import JoinedSource
from forebay.data.kernels import calls as kernels
from forebay.data.loader.batch import Batch
from forebay.data.loader.batch_queue import BatchQueue
from forebay.data.loader.device.copies import DeviceCopies, open_copies
from forebay.data.loader.device.feed import DeviceFeed
from forebay.data.loader.gather_threads import GatherThreads
from forebay.data.loader.gathered_epoch import GatheredEpoch, LoaderOptions
from forebay.data.loader.rank_batches import SerialExecutor
from forebay.data.transform.block import Block
from forebay.errors import LoaderClosed
from forebay.runtime.foreign_code import begin, outcome_of
from forebay.runtime.memory.pool import BufferPool
from forebay.runtime.metrics import Counters, HeldCounters

_KEPT_S = 10.0
"""Seconds for which the start of an epoch that may not come is kept. It saves 10 ms, and holds a lease on the cache."""
_POLL_S = 0.2
_CLOSE_S = 5.0

live_pipelines: weakref.WeakSet[Pipeline] = weakref.WeakSet()


class EpochBatches:
    """Finished batches of one epoch, for the trainer.

    Attributes:
        start: Epoch, and position of the first batch.
        is_sure: Whether it is known that the trainer will begin the epoch.
        queue: Finished batches, in main memory or on the device.
        begun: Set once the trainer has begun the epoch, or the pipeline was closed.
    """

    def __init__(
        self,
        options: LoaderOptions,
        counters: Counters,
        copies: DeviceCopies | None,
        *,
        start: tuple[int, int],
        is_sure: bool,
    ) -> None:
        self.start, self.is_sure, self._counters = start, is_sure, counters
        # The memory of a GPU is dearer, and what the queue saves there is main memory.
        self.queue = BatchQueue(options.prefetch_bytes // (2 if copies is None else 4))
        self.begun = threading.Event()
        self._feed = None if copies is None else DeviceFeed(copies)

    @property
    def may_come(self) -> bool:
        """Whether the trainer may never begin the epoch."""
        return not (self.is_sure or self.begun.is_set())

    def put(self, batch: Batch, num_bytes: int) -> None:
        """Append a finished batch, once there is room.

        Starts its copy to the device before it waits.
        """
        self.queue.put(batch if self._feed is None else self._feed.start(batch), num_bytes)

    def next(self) -> Batch | None:
        """Return the next batch, and count it.

        None after the last. Raises the error that ended the epoch early.
        """
        # The trainer waits for all of this, with cold CPU caches: one call that counts all takes half of the time.
        asked = time.perf_counter()
        batch = self.queue.get()
        got = time.perf_counter()
        counted: dict[str, float] = {"wait_s": got - asked}
        if batch is not None:
            if self._feed is not None:
                batch = self._feed.hand_out(batch)
                counted["copy_s"] = time.perf_counter() - got
            counted |= {"batches": 1, "rows": batch.num_rows}
        self._counters.merge(counted)
        return batch


class Pipeline:
    """Batches of one rank, epoch after epoch.

    From a position on, by one thread and one source of blocks.

    One thread makes the batches. Others copy parts of the rows of a large batch, without the GIL, where cores are left
    for them. The one thread also calls the augment, and starts the copies to a device. Half of `prefetch_bytes` bounds
    the blocks requested ahead of need, where nothing else does (`Prefetcher`), and half the finished batches of an
    epoch, or a quarter those on a device.

    Once an epoch is made, the thread goes on with the next one, at most one ahead of the trainer. If `options.epochs`
    does not say that this one comes, it plans the first window, maps its blocks and gathers two batches, as far as
    they are in the cache. Before the trainer begins, it reads no source, calls no function of the user and counts
    nothing. It ends 10 s after the trainer has taken all batches before it, or once `owner` returns None.

    Args:
        options: Options of the loader.
        source: Blocks, closed by this pipeline.
        pool: Memory of the batches.
        counters: Receives the counters. A block, and the work for it, counts for the epoch that it feeds.
        start: Epoch and position of the first batch.
        owner: Weak reference to the user of this pipeline.
    """

    def __init__(
        self,
        options: LoaderOptions,
        source: JoinedSource,
        pool: BufferPool,
        counters: HeldCounters,
        *,
        start: tuple[int, int],
        owner: Callable[[], object | None],
    ) -> None:
        self._options, self._source, self._pool, self._counters, self._owner = options, source, pool, counters, owner
        self._pid = os.getpid()
        kernels.load()  # before the first thread
        self._threads = GatherThreads.of_machine(options.world.size)
        self._copies = None if options.device is None else open_copies(options.device)
        self._lock = threading.Lock()
        self._closed = self._source_closed = False
        self._epochs: deque[EpochBatches] = deque(maxlen=2)
        """The trainer's epoch, and the one that is made."""
        self._making = self._add_epoch(*start, is_sure=True)
        self._gathered = self._gather(self._making)
        with ExitStack() as undo:
            undo.callback(self._close_source, _CLOSE_S)
            self._thread = begin(threading.Thread(target=self._run, name="forebay-gather", daemon=True))
            undo.pop_all()
        live_pipelines.add(self)

    def makes(self, epoch: int, position: int) -> bool:
        """Whether a trainer can begin at a position."""
        return any(each.start == (epoch, position) and not each.begun.is_set() for each in self._epochs)

    def begin(self, epoch: int, position: int) -> EpochBatches | None:
        """Begin an iteration at a position.

        Ends the iteration before. None if the thread does not make these batches.
        """
        with self._lock:
            if not self.makes(epoch, position):
                return None
            found = self._epochs[-1]
            found.begun.set()
            if found is self._making:
                self._counters.release()
            for earlier in [*self._epochs][:-1]:
                earlier.queue.close()
        return found

    def request(self, index: int) -> Future[Block]:
        """Request a block for the epoch that is made now.

        If that epoch may not come: maps it, or waits for the trainer.
        """
        if self._making.may_come:
            # An augment is the user's function: its epoch waits at the first block.
            block = self._source.peek(index, self._counters) if self._options.data.augment is None else None
            if block is not None:
                mapped: Future[Block] = Future()
                mapped.set_result(block)
                return mapped
            self._wait_for_trainer()
        return self._source.request(index)

    def is_closed(self) -> bool:
        """Whether the pipeline was closed."""
        return self._closed

    def close(self, timeout_s: float) -> None:
        """Stop within `timeout_s`, even if a read is stuck.

        A second call returns at once. So do one in a child, and one of this pipeline's thread, which ends soon after.
        """
        if self._pid != os.getpid():  # where a thread of the parent may hold the lock for ever
            return
        if threading.get_ident() == self._thread.ident:
            # The garbage collector freed the iterator there, and the thread may hold any lock.
            start_new_thread(self._end_epochs, ())
            return
        deadline = time.monotonic() + timeout_s
        if self._end_epochs():
            self._close_source(timeout_s)
            self._thread.join(max(deadline - time.monotonic(), 0))

    def _end_epochs(self) -> bool:
        """End all iterations, and so the thread.

        Returns whether this is the first call.
        """
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            epochs = [*self._epochs]
            if not self._making.may_come:
                self._counters.release()
        for each in epochs:
            each.queue.close()
            each.begun.set()
        return True

    def _run(self) -> None:
        error = outcome_of(self._make_all).error
        if error is not None and not isinstance(error, LoaderClosed) and not self._making.queue.closed:
            self._making.queue.put(error)
        # A trainer of the last batches still uses the cache for all who look at its leases.
        while error is None and self._owner() is not None and not self._making.queue.wait_until_taken(_POLL_S):
            pass
        # Here, and not in the trainer's thread: it takes 1 ms.
        self._close_source(_CLOSE_S)

    def _make_all(self) -> None:
        with closing(self._threads), closing(SerialExecutor()) as executor:
            while (following := self._make_epoch(executor)) is not None:
                with self._lock:
                    self._making = following  # first: an error of the next line belongs to its epoch
                    if not following.begun.is_set():
                        self._counters.hold()
                self._gathered = self._gather(following)

    def _make_epoch(self, executor: SerialExecutor) -> EpochBatches | None:
        """Make all batches of an epoch.

        Returns the next one, if there is one.
        """
        making, following = self._making, None
        for batch, num_bytes in self._gathered.batches(executor):
            # Of an epoch that may not come, one batch is in the queue and the next one in hand: that and the first step
            # hide the rest.
            if batch.ends_epoch or (making.may_come and making.queue.held_bytes):
                self._wait_for_trainer()
            if batch.ends_epoch and self._has_next(making.start[0]):
                # Before the trainer gets the last batch: it begins the next epoch as soon as it likes.
                following = self._add_epoch(making.start[0] + 1, 0, is_sure=self._options.epochs is not None)
            making.put(batch, num_bytes)
            del batch  # the trainer's alone from here on
        making.queue.put(None)
        return following

    def _wait_for_trainer(self) -> None:
        """Wait until the trainer begins the prepared epoch.

        Raises `LoaderClosed` if it does not.
        """
        making = self._making
        needed_at = time.monotonic()
        while not making.begun.wait(_POLL_S):
            # The trainer may stop for minutes with batches of a small epoch in the queue: it uses the cache meanwhile.
            if making.is_sure or any(each.queue.held_bytes for each in [*self._epochs] if each is not making):
                needed_at = time.monotonic()
            if self._owner() is None or time.monotonic() - needed_at >= _KEPT_S:
                with self._lock:
                    if not making.begun.is_set():
                        self._epochs.remove(making)
                        raise LoaderClosed("The next epoch did not begin.")
        if self._closed:
            raise LoaderClosed("The loader was closed while it prepared a batch.")

    def _has_next(self, epoch: int) -> bool:
        return self._options.epochs is None or epoch + 1 < self._options.epochs

    def _add_epoch(self, epoch: int, position: int, *, is_sure: bool) -> EpochBatches:
        added = EpochBatches(self._options, self._counters.to, self._copies, start=(epoch, position), is_sure=is_sure)
        with self._lock:
            if self._closed:
                raise LoaderClosed("The loader was closed while it prepared a batch.")
            self._epochs.append(added)
        return added

    def _gather(self, batches: EpochBatches) -> GatheredEpoch:
        return GatheredEpoch(
            self._options,
            self,
            self._pool,
            self._threads,
            self._counters,
            start=batches.start,
            ahead=batches.queue.__len__,
        )

    def _close_source(self, timeout_s: float) -> None:
        with self._lock:
            closed, self._source_closed = self._source_closed, True
        if not closed:
            self._source.close(timeout_s)
