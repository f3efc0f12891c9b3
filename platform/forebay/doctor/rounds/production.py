"""Blocks made at full speed, and discarded.

The data workers' half of a cold epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from forebay.data.cache.builders.block_builder import BuildOptions
from forebay.data.cache.builders.block_pool import BlockPool
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.transform.block import Block
from forebay.doctor.rounds.cold_epoch import ColdEpoch
from forebay.doctor.rounds.sample_pass import MOST_PASSES, BlockIO, SamplePass
from forebay.runtime.foreign_code import begin, outcome_of
from forebay.runtime.metrics import Counters

_LEAST_BLOCKS = 2
_SLOW_S = 0.5
_CLOSE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """Blocks and rows made in `seconds`.

    With the seconds of each step over all threads.

    `num_reads` is the mean number of row groups that were read at once. `read_s` is the time in which as many fetch
    these rows, `make_s` that in which as many cores as may do so decode and transform them.

    Where no block has ended, the ones at work count as if they ended now: the rates are upper bounds.
    """

    blocks: int
    rows: int
    nbytes: int
    seconds: float
    num_reads: float
    read_s: float
    make_s: float
    sums: Mapping[str, float]


class _Made(NamedTuple):
    """A block, its thread seconds, and its counters."""

    block: Block
    held_s: float
    sums: Mapping[str, float]


_STEPS = ("remote_read_s", "decode_s", "transform_s", "write_s")
"""Counters of the steps of a block, in order."""


class UnfinishedBlock:
    """Block that is made by a builder with `counters` since `began`."""

    def __init__(self, counters: Counters, began: float) -> None:
        self._counters, self.began, self.before = counters, began, counters.as_dict()

    @property
    def num_ended(self) -> int:
        """Number of its steps that have ended."""
        return len(self._counters.since(self.before).keys() & set(_STEPS))

    def sums(self, *, is_read: bool) -> dict[str, float]:
        """Return the seconds of its steps until now.

        A step counts when it ends. So the time that no counter has is of the first step that has none: it has not
        ended. `is_read`: pages come from the source.
        """
        known = self._counters.since(self.before)
        found = {name: known.get(name, 0.0) for name in _STEPS}
        waiting = [name for name in (_STEPS if is_read else _STEPS[1:]) if not found[name]] or [_STEPS[-1]]
        found[waiting[0]] += max(0.0, time.perf_counter() - self.began - sum(found.values()))
        return found


class BlockProduction:
    """Makes the blocks of `epoch` and of the epochs after it.

    In the order of need, from `start` to `stop`.

    It has the threads, cores and reads in flight of a job's `LocalSource`. The row groups of a sample stand for all of
    the dataset, in turn.
    """

    def __init__(self, block_io: BlockIO, workers: DataWorkers, epoch: ColdEpoch) -> None:
        self._io, self._epoch = block_io, epoch
        self._workers = workers.for_files_of(block_io.sample[0].dataset)
        self._changed = threading.Condition()
        self._pending = set[int]()
        self._at_work = dict[int, UnfinishedBlock]()
        self._num_reads = self._workers.read_bounds.start
        self._sums = Counters()
        self._blocks = self._rows = self._nbytes = self._epochs = 0
        self._started = self._began = self._seconds = self._last = self._held_s = 0.0
        self._is_counting = self._ends = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="forebay-doctor", daemon=True)

    def has_made_enough(self, least: int = _LEAST_BLOCKS) -> bool:
        """Return whether there are enough blocks to show the speed.

        An epoch, or two blocks for each read at once. Also after an error.

        Reads that begin together end together, so a few of them show a part of what the line gives. And "auto" has
        more reads as long as the line has room: then it takes some round trips until this number is reached. Of
        slow blocks that wait for cores most of their time, `least` are enough.
        """
        if self._error is not None or self._blocks < least:
            return self._error is not None
        if self._epochs > 0 or self._blocks >= 2 * self._num_reads:
            return True
        return 2 * self._sums["remote_read_s"] < self._held_s and time.perf_counter() - self._started > _SLOW_S

    @property
    def is_left_behind(self) -> bool:
        """Whether threads have not ended with `stop`: they may still write blocks."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start making blocks."""
        self._started = time.perf_counter()
        begin(self._thread)

    def stop(self, within_s: float | None = None) -> Produced:
        """End all threads.

        Unfinished blocks do not count, unless none has ended. Raises the error of a block that failed. Threads that
        have not ended `within_s` are left behind.
        """
        with self._changed:
            self._ends = True
            self._changed.notify_all()
            if self._blocks:
                self._stop_counting()
            else:
                self._count_unfinished()
        self._thread.join(within_s)
        if self._error is not None:
            raise self._error
        allowed = self._sums["reads_allowed"] / self._blocks if self._sums["reads_allowed"] else self._num_reads
        num_reads = min(allowed, self._epoch.num_blocks)  # an epoch of few blocks has no more reads than these
        in_cores = self._sums["decode_s"] + self._sums["transform_s"]
        return Produced(
            blocks=self._blocks,
            rows=self._rows,
            nbytes=self._nbytes,
            seconds=self._seconds,
            num_reads=num_reads,
            read_s=self._sums["remote_read_s"] / num_reads,
            make_s=in_cores / self._workers.num_cores(),
            sums=self._sums.as_dict(),
        )

    def _count_unfinished(self) -> None:
        """Count unfinished blocks as if they ended now.

        Each counts like the one that has got furthest.
        """
        at_work = dict(self._at_work)
        if not at_work:
            return
        number = max(at_work, key=lambda each: (at_work[each].num_ended, -each))
        sums = at_work[number].sums(is_read=self._io.from_source)
        count = min(len(at_work), self._workers.num_cores())  # the others wait for a core
        self._is_counting = False
        self._blocks, self._seconds = count, max(time.perf_counter() - self._started, 1e-9)
        self._rows = count * self._io.sample[number % len(self._io.sample)].row_group.rows
        self._sums.merge({name: count * seconds for name, seconds in sums.items()})
        self._sums.add("reads_allowed", count * self._num_reads)

    def _run(self) -> None:
        while self._is_wanted():
            error = outcome_of(self._run_epoch).error
            self._error = self._error or error

    def _is_wanted(self) -> bool:
        return not self._ends and self._error is None

    def _run_epoch(self) -> None:
        """Make blocks until the epoch or the production ends."""
        passes = dict[int, SamplePass]()

        def make(number: int) -> _Made:
            return self._made(passes[number // len(self._io.sample)], number, pool)

        def open_pass(number: int) -> None:
            if number not in passes:
                passes[number] = SamplePass(self._io, number, BuildOptions(cancelled=pool.cancelled, cores=pool.cores))
                passes.pop(number - MOST_PASSES, None)

        pool: BlockPool[int, _Made] = BlockPool(make, self._workers, reads=self._epoch.reads)
        try:
            self._request(self._epoch.remaining, pool, open_pass)
        finally:
            pool.close(_CLOSE_S)
            self._pending.clear()

    def _request(self, numbers: range, pool: BlockPool[int, _Made], open_pass: Callable[[int], None]) -> None:
        """Request all of `numbers` ahead of need, and wait.

        As far as passes may overlap.
        """
        size = len(self._io.sample)
        open_pass(numbers.start // size)
        made = self._blocks
        self._last = self._began = time.perf_counter()
        self._is_counting = True
        for number in numbers:
            if not self._wait(partial(self._are_made, (number // size - MOST_PASSES + 1) * size)):
                break
            open_pass(number // size)
            self._pending.add(number)
            pool.submit(number).add_done_callback(partial(self._count, number, pool))
        else:
            self._epochs += self._wait(lambda: not self._pending)
        with self._changed:
            self._stop_counting()
            self._epoch.advance(self._blocks - made, pool.reads)

    def _stop_counting(self) -> None:
        """End the time of the blocks: later ones do not count."""
        if self._is_counting:
            self._is_counting = False
            self._seconds += self._last - self._began

    def _are_made(self, stop: int) -> bool:
        """Whether the requested blocks below `stop` are made."""
        return min(self._pending, default=stop) >= stop

    def _made(self, sample_pass: SamplePass, number: int, pool: BlockPool[int, _Made]) -> _Made:
        each = self._io.sample[number % len(self._io.sample)]
        sample_pass.begin()
        builder, counters = sample_pass.builder(each.dataset)
        unfinished = UnfinishedBlock(counters, time.perf_counter())
        self._at_work[number] = unfinished
        try:
            block = pool.build(builder, each.index, counters).block
        finally:
            self._at_work.pop(number, None)
        return _Made(block, time.perf_counter() - unfinished.began, counters.since(unfinished.before))

    def _wait(self, is_ready: Callable[[], bool]) -> bool:
        """Wait until `is_ready`. False if the production ends before."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_wanted() or is_ready())
            return self._is_wanted()

    def _count(self, number: int, pool: BlockPool[int, _Made], done: Future[_Made]) -> None:
        error = None if done.cancelled() else done.exception()
        with self._changed:
            if not self._is_counting or done.cancelled():
                return
            self._pending.discard(number)
            self._changed.notify_all()
            if error is not None:
                self._error = self._error or error
                return
            made = done.result()
            self._sums.merge(made.sums)
            self._blocks += 1
            self._rows += made.block.rows
            self._nbytes += made.block.nbytes
            self._held_s += made.held_s
            self._num_reads = pool.num_reads
            self._last = time.perf_counter()
