"""Iterator over this rank's part of every global batch, from a cursor on."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import torch

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import JoinedSource, SourceProvider, open_source
from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Transforms, datasets_of, validate_datasets
from forebay.data.loader.device.copies import known_device
from forebay.data.loader.gathered_epoch import LoaderOptions
from forebay.data.loader.pipeline import EpochBatches, Pipeline, live_pipelines
from forebay.data.plan.cursor import Cursor
from forebay.data.plan.order import Last, Order
from forebay.data.transform.augment import Augment, AugmentFunction, as_augment
from forebay.data.transform.dataset import validate_augment
from forebay.data.windows.sequence_block import SequenceTransform
from forebay.errors import CursorMismatch, InvalidOption, LoaderClosed, validate_type, whole_number
from forebay.runtime.memory.buffers import BufferPool
from forebay.runtime.metrics import Counters
from forebay.world import World

_AT_EXIT_S = 3.0
_live: weakref.WeakSet[Loader] = weakref.WeakSet()


class Loader:
    """Iterable over the batches of one rank. One `for` loop yields the rest of the current epoch and stops at the next.

    ```python
    with fb.Loader(plan, transform, cache, global_batch=8192) as loader:
        for epoch in range(3):
            for batch in loader: ...
    ```

    Args:
        plan: Order of the rows, from `build_plan`, or of several datasets. Its manifests name the files.
        transform: Turns a row group into arrays. For several datasets one transform, or one by name of the dataset.
        cache: `DiskCache`, client of a node's cache actor, or None to read the source in every epoch.
        world: Rank and number of ranks. Every world size up to the plan's lanes sees the same global batches.
        global_batch: Rows per step over all ranks.
        epoch: First epoch.
        epochs: Number of the epoch before which iteration ends, if known. The next epoch is then prepared while the
            trainer uses the last batches of one, also from the source. A loop that stops early must call `close()`.
            By default the first batches of the next epoch are prepared as far as the cache has them, for 10 s.
        last: "balance" makes batches whose sizes differ by at most one row, "drop" equal ones (`dropped_rows` counts
            the rest).
        as_numpy: Batches of NumPy arrays instead of torch tensors.
        prefetch_bytes: Bound in bytes on blocks requested before they are needed, and on finished batches.
        counters: Counters of this loader (`forebay.runtime.metrics.METRICS`). New ones by default.
        device: Device of the batches, e.g. "cuda". Batches are gathered into page-locked memory and copied in a stream
            of their own, one ahead of the trainer. None: main memory.
        augment: Function `augment(batch, rng)` that changes batches at random, off the trainer's thread, or `Augment`.

    Raises:
        InvalidOption, TooManyRanks, MissingColumn, WrongType, Unfingerprintable: Before any thread starts.

    A batch stays valid as long as a reference to it, or to a part of it, exists. Leaving the loop early, an exception
    in it, or `close()` ends all threads. After a whole epoch they end by themselves, if the next one does not begin
    within 10 s. A loader works in forked and spawned children.
    """

    def __init__(  # noqa: PLR0913 - the one constructor every user of the data plane writes out
        self,
        plan: Order,
        transform: Transforms,
        cache: DiskCache | SourceProvider | None = None,
        *,
        world: World | None = None,
        global_batch: int,
        epoch: int = 0,
        epochs: int | None = None,
        last: Last = "balance",
        as_numpy: bool = False,
        prefetch_bytes: int = 256 << 20,
        counters: Counters | None = None,
        device: torch.device | str | None = None,
        augment: Augment | AugmentFunction | None = None,
    ) -> None:
        _validate_types(plan, cache, world, counters)
        self._transform, self._cache = transform, cache
        self._datasets = datasets_of(plan, transform)
        self.world = world or World()
        plan.owned_lanes(self.world)
        if not plan.num_batches(global_batch, last=last):
            raise InvalidOption(
                f'global_batch={global_batch} with last="drop" drops all {plan.num_rows} rows of the data. '
                'Use a smaller global batch, or last="balance".'
            )
        validate_datasets(plan, self._datasets)
        for dataset in self._datasets:
            validate_augment(augment, dataset.transform)
        self._options = LoaderOptions(
            plan=plan,
            world=self.world,
            global_batch=whole_number("global_batch", global_batch),
            last=last,
            as_numpy=as_numpy,
            device=known_device(device, as_numpy=as_numpy),
            prefetch_bytes=whole_number("prefetch_bytes", prefetch_bytes, least=1),
            sequences=tuple(each.transform for each in self._datasets if isinstance(each.transform, SequenceTransform)),
            augment=as_augment(augment),
            epochs=None if epochs is None else whole_number("epochs", epochs),
        )
        self.counters = counters or Counters()
        self.dropped_rows = 0
        self._epoch, self._position = whole_number("epoch", epoch), 0
        # One pool for all epochs: the last batches of one and the first of the next share memory.
        self._pool = BufferPool(kept_bytes=self._options.prefetch_bytes // 2, pinned=torch.cuda.is_available())
        self._pipeline: Pipeline | None = None
        self._batches: EpochBatches | None = None
        self._closed = False
        _live.add(self)

    @property
    def epoch(self) -> int:
        """Epoch of the next batch."""
        return self._epoch

    @property
    def plan(self) -> Order:
        """Order of the rows."""
        return self._options.plan

    @property
    def global_batch(self) -> int:
        """Rows per step over all ranks."""
        return self._options.global_batch

    @property
    def last(self) -> Last:
        """Sizes of batches: "balance" or "drop"."""
        return self._options.last

    def __len__(self) -> int:
        """Number of global batches of a whole epoch, at any position. See `batches_left`."""
        return self._options.plan.num_batches(self._options.global_batch, last=self._options.last)

    @property
    def batches_left(self) -> int:
        """Number of global batches from the next one to the end of its epoch."""
        return self._options.plan.num_batches(self._options.global_batch, self._position, last=self._options.last)

    def __iter__(self) -> Iterator[Batch]:
        batches, process = self._start(), os.getpid()
        taken: list[Batch] = []
        try:
            while True:
                if process != os.getpid():  # Threads do not survive a fork: continue from the cursor with new ones.
                    batches, process = self._start(), os.getpid()
                batch = batches.next()
                if batch is None:
                    return
                self._advance_cursor(batch)
                # No reference stays here: memory is reused as soon as the trainer has dropped the batch. Freeing the
                # batch before took half of the time in which a trainer waits for one that is finished.
                taken.append(batch)
                del batch
                yield taken.pop()
        finally:
            if process == os.getpid():
                self._leave(batches)

    def cursor(self) -> Cursor:
        """Position of the next batch, after the last one handed out. After an epoch's end, the start of the next."""
        return Cursor(
            plan_id=self._options.plan.id,
            epoch=self._epoch,
            position=self._position,
            global_batch=self._options.global_batch,
        )

    def seek(self, cursor: Cursor) -> None:
        """Continue from a cursor, with this loader's world and global batch. Ends a running iteration.

        Nothing is replayed. Raises `CursorMismatch` for a cursor of another plan, or outside of it.
        """
        plan = self._options.plan
        if not isinstance(cursor, Cursor):
            raise CursorMismatch(f"seek() was given {cursor!r:.200}. Give a Cursor; Cursor.from_json(text) reads one.")
        if not plan.accepts(cursor):
            raise CursorMismatch(
                f"The cursor was made with plan {cursor.plan_id[:8]}; this loader reads {plan}. Give the same data, "
                "seed, lanes, shuffle_rows and shuffle as then, or start from epoch 0 without the cursor.",
                cursor_plan=cursor.plan_id,
                plan=plan.id,
            )
        if cursor.epoch < 0 or not 0 <= cursor.position <= plan.num_rows:
            raise CursorMismatch(f"{cursor} is outside of {plan}. Use a cursor from Loader.cursor().")
        self._stop(timeout_s=5)
        self._epoch, self._position = cursor.epoch, cursor.position
        if not self.batches_left:
            self.dropped_rows += plan.num_rows - cursor.position
            self._epoch, self._position = cursor.epoch + 1, 0

    def state_dict(self) -> dict[str, str | int]:
        """Cursor as a plain dict, the same on every rank and for every number of ranks.

        With `load_state_dict` it makes a loader a `torch.distributed.checkpoint.stateful.Stateful`, and a stateful
        dataloader for Lightning, which checks for the same two methods.
        """
        return self.cursor().to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`, as `seek` does from a cursor.

        Raises:
            CursorMismatch: The dict has another form, or belongs to another plan.
        """
        self.seek(Cursor.from_dict(state_dict))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start at the first batch of `epoch`. Changes nothing for the current epoch.

        A resumed loop may therefore call it at every epoch's start: the position in a half-trained epoch stays.
        A loop that was left early loses the rest of its epoch when the next one is set.

        Raises:
            InvalidOption: Not a whole number from 0, or another epoch during an iteration.
        """
        epoch = whole_number("epoch", epoch)
        if epoch == self._epoch:
            return
        if self._pipeline is not None and self._position:
            raise InvalidOption(
                f"set_epoch({epoch}) was called during epoch {self._epoch}, with {self.batches_left} of {len(self)} "
                "batches left. Call it between two epochs, or close() the iterator of this loop first; "
                "seek(cursor) moves a loader at any time.",
                epoch=epoch,
                position=self._position,
            )
        self._stop(timeout_s=5)
        self._epoch, self._position = epoch, 0

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle for a spawned child as a new loader at the same position, with its own counters."""
        return _rebuild, (self._options, self._transform, self._cache, self.cursor())

    def close(self, timeout_s: float = 5) -> None:
        """End all threads within `timeout_s`, even if a read is stuck. Idempotent. Batches stay valid."""
        self._closed = True
        self._stop(timeout_s)
        self._pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> EpochBatches:
        self._raise_if_closed()
        batches = None
        if self._pipeline is not None and self._process == os.getpid():
            batches = self._pipeline.begin(self._epoch, self._position)
        if batches is None:
            self._stop(timeout_s=5)
            self._pipeline = pipeline = self._open(self._epoch, self._position)
            batches = pipeline.begin(self._epoch, self._position)
        self._batches = batches
        self._raise_if_closed()
        assert batches is not None, "only close() ends a pipeline before its first batch"
        return batches

    def _leave(self, batches: EpochBatches) -> None:
        """End an iteration. What is made of the next epoch stays. Another iteration may have started since."""
        if self._batches is not batches:
            return
        has_ended = self._epoch > batches.start[0]
        if not (has_ended and self._pipeline is not None and self._pipeline.makes(self._epoch, self._position)):
            self._stop(timeout_s=5)

    def _raise_if_closed(self) -> None:
        """Check whether another thread closed the loader. If so, stop new threads and raise `LoaderClosed`."""
        if self._closed:
            self._stop(timeout_s=5)
            raise LoaderClosed("This loader is closed. Build a new one and seek() to the cursor of this one.")

    def _open(self, epoch: int, position: int) -> Pipeline:
        sources = [open_source(self._cache, dataset, self.counters) for dataset in self._datasets]
        source = JoinedSource(sources, [len(dataset.manifest) for dataset in self._datasets])
        self._process = os.getpid()
        return Pipeline(
            self._options, source, self._pool, self.counters, start=(epoch, position), owner=weakref.ref(self)
        )

    def _stop(self, timeout_s: float) -> None:
        pipeline, self._pipeline, self._batches = self._pipeline, None, None
        if pipeline is not None:
            pipeline.close(timeout_s)

    def _advance_cursor(self, batch: Batch) -> None:
        if not batch.ends_epoch:
            self._position = batch.position + batch.size
            return
        self.dropped_rows += self._options.plan.num_rows - batch.position - batch.size
        self._epoch, self._position = self._epoch + 1, 0


def _validate_types(plan: object, cache: object, world: object, counters: object) -> None:
    """Raises `InvalidOption` for arguments of a wrong type, before one of them fails later."""
    validate_type("plan", plan, Order, "what fb.build_plan(manifest) returns")
    validate_type("world", world, World | None, "fb.World(rank=..., size=...), or None for a single rank")
    validate_type("counters", counters, Counters | None, "forebay.runtime.metrics.Counters(), or None for new ones")
    if not (cache is None or isinstance(cache, DiskCache) or hasattr(cache, "source")):
        raise InvalidOption(f"cache={cache!r:.200}: give fb.DiskCache(path, quota_bytes=...), or None for no cache.")


def _rebuild(
    options: LoaderOptions, transform: Transforms, cache: DiskCache | SourceProvider | None, cursor: Cursor
) -> Loader:
    loader = Loader(
        options.plan,
        transform,
        cache,
        world=options.world,
        global_batch=options.global_batch,
        epochs=options.epochs,
        last=options.last,
        as_numpy=options.as_numpy,
        prefetch_bytes=options.prefetch_bytes,
        device=options.device,
        augment=options.augment,
    )
    loader.seek(cursor)
    return loader


def _close_all() -> None:
    give_up = time.monotonic() + _AT_EXIT_S
    for loader in list(_live):
        loader.close(max(give_up - time.monotonic(), 0.0))
    for pipeline in list(live_pipelines):  # A thread may outlive its loader for a moment.
        pipeline.close(max(give_up - time.monotonic(), 0.0))


# A daemon thread that returns from C++ into an ended interpreter aborts the whole process (SIGABRT).
atexit.register(_close_all)
