"""Endless batches for the rounds of an examination.

Kept in memory, or gathered by the job's own loader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from queue import Empty, Queue

import numpy as np
import torch

from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.loader.device.copies import open_copies
from forebay.data.loader.device.feed import DeviceFeed
from forebay.data.loader.loader import Loader
from forebay.doctor.rounds.held_blocks import HeldBlocks
from forebay.runtime.foreign_code import OutcomeThread, begin
from forebay.runtime.metrics import Counters
from forebay.world import World

Copy = Callable[[Batch], Batch]
"""Copies a batch from main memory to the device of the model."""

NUM_KEPT = 4
_QUEUED = 16
_ROOM_S = 0.01
_EPOCHS = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatches:
    """First batches of the job, in memory and on the device."""

    in_memory: tuple[Batch, ...]
    on_device: tuple[Batch, ...]

    @property
    def rows(self) -> int:
        """Rows of a batch of this rank."""
        return max(_num_rows(batch) for batch in self.in_memory)

    @property
    def nbytes(self) -> int:
        """Bytes of one batch."""
        return sum(array.nbytes for array in self.in_memory[0].values())

    def endless(self) -> Iterator[Batch]:
        """Batches on the device, over and over."""
        return cycle(self.on_device)

    def endless_small(self) -> Iterator[Batch]:
        """The same with a quarter of the rows."""
        return cycle([each.take(np.arange(small_rows(self.rows)), weight=each.weight) for each in self.on_device])

    def endless_copied(self, copy: Copy) -> Iterator[Batch]:
        """Batches in memory, copied when they are drawn."""
        return (copy(batch) for batch in cycle(self.in_memory))

    def endless_fed(self, device: torch.device) -> Generator[Batch]:
        """Yield batches in memory, copied ahead by a thread as a loader does.

        Close the iterator to end the thread.
        """
        feed, ready, ends = DeviceFeed(open_copies(device)), Queue[Batch | None](maxsize=1), threading.Event()

        def run() -> None:
            for batch in cycle(self.in_memory):
                if ends.is_set():
                    return
                ready.put(feed.start(batch))

        thread = OutcomeThread(run, "forebay-doctor", partial(ready.put, None))
        begin(thread)
        try:
            while (batch := ready.get()) is not None:
                yield feed.hand_out(batch)
            if thread.error is not None:
                raise thread.error
        finally:
            ends.set()
            while thread.is_alive():  # it may wait for room
                with suppress(Empty):
                    ready.get(timeout=_ROOM_S)


def small_rows(rows: int) -> int:
    """Rows of a small batch."""
    return max(1, rows // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredBatches:
    """Batches of one rank, gathered from held blocks by a `Loader`."""

    data: Data
    world: World
    blocks: HeldBlocks

    def keep(self, copy: Copy, device: torch.device) -> KeptBatches:
        """Copy the first batches."""
        with closing(self._open(1 << 20, Counters(), None)) as batches:
            first = [_owned(batch, device) for batch in islice(batches, NUM_KEPT)]
        return KeptBatches(in_memory=tuple(first), on_device=tuple(copy(batch) for batch in first))

    def endless(
        self, move: Copy | torch.device, counters: Counters, *, batch_bytes: int, is_small: bool = False
    ) -> Generator[Batch]:
        """Yield the batches of epoch after epoch.

        The loader itself brings them to a device, as in a job. Close the iterator to end its threads.
        """
        rows = max(self.world.size, small_rows(self.data.global_batch)) if is_small else self.data.global_batch
        resized = replace(self, data=replace(self.data, global_batch=rows))
        # A short queue: a round must not be fed by what was prepared before it.
        queue_bytes = min(256 << 20, max(1 << 20, 2 * _QUEUED * batch_bytes))
        device = move if isinstance(move, torch.device) else None
        with closing(GatheredBatches._open(resized, queue_bytes, counters, device)) as batches:
            for batch in batches:
                yield batch if isinstance(move, torch.device) else move(batch)

    def _open(self, prefetch_bytes: int, counters: Counters, device: torch.device | None) -> Generator[Batch]:
        with Loader(
            self.data,
            self.blocks,
            world=self.world,
            epochs=_EPOCHS,
            prefetch_bytes=prefetch_bytes,
            counters=counters,
            device=device,
        ) as loader:
            while True:
                for batch in loader:
                    yield _within_epoch(batch)


def _within_epoch(batch: Batch) -> Batch:
    """Return the batch as if within the first epoch.

    An examination ends no epoch.
    """
    batch.epoch, batch.ends_epoch = 0, False
    return batch


def _num_rows(batch: Batch) -> int:
    """Return the number of rows of the arrays.

    With the dummy row of a rank that has none.
    """
    return max(batch.num_rows, 1)


def _owned(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch into its own memory.

    Page-locked for a GPU.
    """
    owned = batch.take(np.arange(_num_rows(batch)), weight=batch.weight)
    owned.num_rows = batch.num_rows
    if device.type == "cuda":
        owned.update({name: tensor.pin_memory() for name, tensor in owned.items()})
    return owned
