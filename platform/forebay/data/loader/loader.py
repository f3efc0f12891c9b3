"""Iterator over this rank's part of every global batch."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, overload

import torch

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import JoinedSource, SourceProvider, open_source
from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data, Transforms
from forebay.data.loader.device.copies import known_device
from forebay.data.loader.gathered_epoch import LoaderOptions
from forebay.data.loader.pipeline import EpochBatches, Pipeline, live_pipelines
from forebay.data.plan.cursor import Cursor
from forebay.data.plan.order import Last, Order
from forebay.data.transform.augment import Augment, AugmentFunction
from forebay.data.transform.transform import Transform
from forebay.data.windows.sequence_block import SequenceTransform
from forebay.errors import CursorMismatch, InvalidOption, LoaderClosed, validate_type, whole_number
from forebay.runtime.memory.pool import BufferPool
from forebay.runtime.metrics import Counters, HeldCounters
from forebay.world import World

_AT_EXIT_S = 3.0
_PREFETCH_BYTES = 256 << 20
_live: weakref.WeakSet[Loader] = weakref.WeakSet()


class Loader:
    """Iterable over the batches of one rank.

    One `for` loop yields the rest of the current epoch and stops at the next.

    ```python
    with fb.Loader(data, cache) as loader:
        for epoch in range(3):
            for batch in loader: ...
    ```

    `Loader(plan, transform, cache, global_batch=8192)` is another way to write
    `Loader(Data(plan=plan, transform=transform, global_batch=8192), cache)`. It also takes `last` and `augment` of
    `Data`.

    Args:
        data: Rows, their arrays and the global batch. Every world size up to the plan's lanes sees the same global
            batches. With `last="drop"`, `dropped_rows` counts the rows that are left out.
        cache: `DiskCache`, client of a node's cache actor, or None to read the source in every epoch.
        world: Rank and number of ranks.
        epoch: First epoch.
        epochs: Number of the epoch before which iteration ends, if known. The next epoch is then prepared while the
            trainer uses the last batches of one, also from the source. A loop that stops early must call `close()`.
            By default the first batches of the next epoch are prepared as far as the cache has them, for 10 s.
        as_numpy: Batches of NumPy arrays instead of torch tensors.
        prefetch_bytes: Limit in bytes of blocks requested before they are needed, and of finished batches. By default
            256 MiB, and for blocks as much as the rows that are shuffled together take, up to a sixteenth of the free
            memory.
        counters: Counters of this loader (`forebay.runtime.metrics.METRICS`). New ones by default.
        device: Device of the batches, e.g. "cuda". Batches are gathered into page-locked memory, and copied in a stream
            of their own as soon as they are finished. They take at most a quarter of `prefetch_bytes` there, and at
            least one batch is ready. None: main memory.

    Raises:
        InvalidOption, TooManyRanks, MissingColumn, WrongType, Unfingerprintable: Before any thread starts.

    A batch stays valid as long as a reference to it, or to a part of it, exists. Leaving the loop early, an exception
    in it, or `close()` ends all threads. After a whole epoch they end by themselves, if the next one does not begin
    within 10 s. A loader works in forked and spawned children.
    """

    @overload
    def __init__(
        self,
        data: Data,
        cache: DiskCache | SourceProvider | None = None,
        *,
        world: World | None = None,
        epoch: int = 0,
        epochs: int | None = None,
        as_numpy: bool = False,
        prefetch_bytes: int | None = None,
        counters: Counters | None = None,
        device: torch.device | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        plan: Order,
        /,
        transform: Transforms,
        cache: DiskCache | SourceProvider | None = None,
        *,
        global_batch: int,
        last: Last = "balance",
        augment: Augment | AugmentFunction | None = None,
        world: World | None = None,
        epoch: int = 0,
        epochs: int | None = None,
        as_numpy: bool = False,
        prefetch_bytes: int | None = None,
        counters: Counters | None = None,
        device: torch.device | str | None = None,
    ) -> None: ...

    def __init__(  # type: ignore[misc] # noqa: PLR0913 - `cache` is the second argument of one form, the third of one
        self,
        data: Data | Order,
        transform: Transforms | DiskCache | SourceProvider | None = None,
        cache: DiskCache | SourceProvider | None = None,
        *,
        global_batch: int | None = None,
        last: Last | None = None,
        augment: Augment | AugmentFunction | None = None,
        world: World | None = None,
        epoch: int = 0,
        epochs: int | None = None,
        as_numpy: bool = False,
        prefetch_bytes: int | None = None,
        counters: Counters | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if isinstance(data, Data):
            self._cache = _cache_beside_data(transform, cache, global_batch=global_batch, last=last, augment=augment)
        else:
            data = _data_of(data, transform, global_batch=global_batch, last=last or "balance", augment=augment)
            self._cache = cache
        _validate_types(self._cache, world, counters)
        self._datasets = data.datasets
        self.world = world or World()
        data.plan.owned_lanes(self.world)
        data.validate_columns()
        data.validate_functions()
        self._options = LoaderOptions(
            data=data,
            world=self.world,
            as_numpy=as_numpy,
            device=None if device is None else known_device(device, as_numpy=as_numpy),
            prefetch_bytes=whole_number(
                "prefetch_bytes", _PREFETCH_BYTES if prefetch_bytes is None else prefetch_bytes, least=1
            ),
            is_auto=prefetch_bytes is None,
            sequences=tuple(each.transform for each in self._datasets if isinstance(each.transform, SequenceTransform)),
            epochs=None if epochs is None else whole_number("epochs", epochs),
        )
        self.counters = counters or Counters()
        self.dropped_rows = 0
        self._epoch, self._position = whole_number("epoch", epoch), 0
        # One pool for all epochs: the last batches of one and the first of the next share memory. Page-locked only for
        # a GPU that was asked for: the first such memory of a process takes 0.5 GB of the GPU.
        device = self._options.device
        self._pool = BufferPool(
            kept_bytes=self._options.prefetch_bytes // 2, pinned=device is not None and device.type == "cuda"
        )
        self._pipeline: Pipeline | None = None
        self._batches: EpochBatches | None = None
        self._closed = False
        _live.add(self)

    @property
    def data(self) -> Data:
        """Rows, their arrays and the global batch."""
        return self._options.data

    @property
    def epoch(self) -> int:
        """Epoch of the next batch."""
        return self._epoch

    @property
    def plan(self) -> Order:
        """Order of the rows."""
        return self.data.plan

    @property
    def global_batch(self) -> int:
        """Rows per step over all ranks."""
        return self.data.global_batch

    @property
    def last(self) -> Last:
        """Sizes of batches: "balance" or "drop"."""
        return self.data.last

    def __len__(self) -> int:
        """Number of global batches of a whole epoch.

        At any position. See `batches_left`.
        """
        return self.data.num_batches

    @property
    def batches_left(self) -> int:
        """Number of global batches left in the current epoch."""
        return self.plan.num_batches(self.global_batch, self._position, last=self.last)

    def __iter__(self) -> Iterator[Batch]:
        getpid = os.getpid  # an iterator may outlive the names of its module, at the end of a program
        batches, process = self._start(), getpid()
        taken: list[Batch] = []
        try:
            while True:
                if process != getpid():  # Threads do not survive a fork: continue from the cursor with new ones.
                    batches, process = self._start(), getpid()
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
            if process == getpid():
                self._leave(batches)

    def cursor(self) -> Cursor:
        """Cursor of the next batch.

        After the last one handed out. After an epoch's end, the start of the next.
        """
        return Cursor(plan_id=self.plan.id, epoch=self._epoch, position=self._position, global_batch=self.global_batch)

    def seek(self, cursor: Cursor) -> None:
        """Continue from a cursor.

        With this loader's world and global batch. Ends a running iteration.

        Nothing is replayed. Raises `CursorMismatch` for a cursor of another plan, or outside of it.
        """
        plan = self.plan
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
        """Cursor as a plain dict.

        The same on every rank and for every number of ranks.

        With `load_state_dict` it makes a loader a `torch.distributed.checkpoint.stateful.Stateful`, and a stateful
        dataloader for Lightning, which checks for the same two methods.
        """
        return self.cursor().to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`.

        As `seek` does from a cursor.

        Raises:
            CursorMismatch: The dict has another form, or belongs to another plan.
        """
        self.seek(Cursor.from_dict(state_dict))

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the first batch of `epoch`.

        Changes nothing for the current epoch.

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
        """Pickle for a spawned child.

        A new loader at the same position, with its own counters.
        """
        return _rebuild, (self._options, self._cache, self.cursor())

    def close(self, timeout_s: float = 5) -> None:
        """End all threads within `timeout_s`. Idempotent.

        Even if a read is stuck. Batches stay valid.
        """
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
        """End an iteration.

        What is made of the next epoch stays. Another iteration may have started since.
        """
        if self._batches is not batches:
            return
        has_ended = self._epoch > batches.start[0]
        if not (has_ended and self._pipeline is not None and self._pipeline.makes(self._epoch, self._position)):
            self._stop(timeout_s=5)

    def _raise_if_closed(self) -> None:
        """Raise `LoaderClosed` if another thread closed the loader.

        Also stops new threads.
        """
        if self._closed:
            self._stop(timeout_s=5)
            raise LoaderClosed("This loader is closed. Build a new one and seek() to the cursor of this one.")

    def _open(self, epoch: int, position: int) -> Pipeline:
        self.data.validate_functions()
        counters = HeldCounters(self.counters)
        sources = [open_source(self._cache, dataset, counters) for dataset in self._datasets]
        source = JoinedSource(sources, [len(dataset.manifest) for dataset in self._datasets])
        self._process = os.getpid()
        return Pipeline(self._options, source, self._pool, counters, start=(epoch, position), owner=weakref.ref(self))

    def _stop(self, timeout_s: float) -> None:
        pipeline, self._pipeline, self._batches = self._pipeline, None, None
        if pipeline is not None:
            pipeline.close(timeout_s)

    def _advance_cursor(self, batch: Batch) -> None:
        if not batch.ends_epoch:
            self._position = batch.position + batch.size
            return
        self.dropped_rows += self.plan.num_rows - batch.position - batch.size
        self._epoch, self._position = self._epoch + 1, 0


def _cache_beside_data(second: Any, cache: Any, **parts: object) -> Any:
    """Cache of `Loader(data, cache)`.

    Raises `InvalidOption` for what `data` has already.
    """
    if isinstance(second, Transform | Mapping):
        parts = {"transform": second, **parts}
    elif second is not None and cache is not None:
        raise InvalidOption("Loader(data, cache) got two caches. Give one.")
    given = [name for name, value in parts.items() if value is not None]
    if given:
        names = " and ".join(given)
        raise InvalidOption(
            f"Loader(data) got {names} as well, which data has already. Leave out {names}, or change "
            f"data=dataclasses.replace(data, {given[0]}=...).",
            names=tuple(given),
        )
    return cache if second is None else second


def _data_of(plan: Any, transform: Any, *, global_batch: int | None, last: Last, augment: Any) -> Data:
    """Data of `Loader(plan, transform, global_batch=...)`. Raises `InvalidOption`."""
    validate_type("data", plan, Order, "fb.Data, or what fb.build_plan(manifest) returns")
    if transform is None or global_batch is None:
        missing = "transform" if transform is None else "global_batch"
        raise InvalidOption(
            f"Loader(plan) got no {missing}. Give Loader(plan, fb.Transform(...), global_batch=...), or Loader(data) "
            "with data=fb.Data(...).",
            missing=missing,
        )
    return Data(plan=plan, transform=transform, global_batch=global_batch, last=last, augment=augment)


def _validate_types(cache: object, world: object, counters: object) -> None:
    """Raise `InvalidOption` for arguments of a wrong type.

    Before one of them fails later.
    """
    validate_type("world", world, World | None, "fb.World(rank=..., size=...), or None for a single rank")
    validate_type("counters", counters, Counters | None, "forebay.runtime.metrics.Counters(), or None for new ones")
    if not (cache is None or isinstance(cache, DiskCache) or hasattr(cache, "source")):
        raise InvalidOption(f"cache={cache!r:.200}: give fb.DiskCache(path, quota_bytes=...), or None for no cache.")


def _rebuild(options: LoaderOptions, cache: DiskCache | SourceProvider | None, cursor: Cursor) -> Loader:
    loader = Loader(
        options.data,
        cache,
        world=options.world,
        epochs=options.epochs,
        as_numpy=options.as_numpy,
        prefetch_bytes=None if options.is_auto else options.prefetch_bytes,
        device=options.device,
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
