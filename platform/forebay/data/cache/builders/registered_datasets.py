"""Datasets of a process that builds blocks for others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import cloudpickle

from forebay.data.cache.builders.block_builder import BlockBuilder
from forebay.data.transform.dataset import Dataset
from forebay.errors import ForebayError, TransformFailed
from forebay.runtime.foreign_code import replaced_errors
from forebay.runtime.metrics import Counters
from forebay.runtime.pickling import pickled


def pack(dataset: Dataset) -> bytes:
    """Pickle a dataset.

    Installed code by name, and the user's own files by value. Raises `NotPicklable`.
    """
    if dataset.transform.fn is None:
        return bytes(cloudpickle.dumps(dataset))
    return pickled(dataset)


def unpack(payload: bytes) -> Dataset:
    """Unpickle the dataset.

    Raises `TransformFailed` if this process lacks a package that the transform needs, and `Unfingerprintable` if the
    transform's function reads something else here than where it was packed, such as a module of another version.
    """
    with replaced_errors(_not_loaded, _OF_LOADING):
        dataset: Dataset = cloudpickle.loads(payload)
    dataset.transform.validate_unchanged()
    return dataset


_OF_LOADING = (
    *(ImportError, AttributeError, RuntimeError, TypeError, ValueError, LookupError, OSError, SyntaxError),
    *(AssertionError, ArithmeticError),
)
"""Errors of imports and of the user's own classes, which run while a dataset is loaded."""


def _not_loaded(error: Exception) -> Exception:
    if isinstance(error, ForebayError):
        return error
    return TransformFailed(
        f"The transform cannot be loaded in another process of the node: {type(error).__name__}: {error}. Install its "
        "imports there, or end the cache's actor if the package was installed after it started."
    )


class BuiltElsewhere(Exception):
    """Cause of an error: its traceback in the process that built the block."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailed:
    """Reply: the block cannot be built.

    `trace` is the traceback in the process that built it.
    """

    error: ForebayError
    trace: str
    sums: Mapping[str, float] = field(default_factory=dict)

    def throw(self) -> NoReturn:
        """Raise the error, with its traceback in the other process."""
        raise self.error from BuiltElsewhere(self.trace)


_MOST_DATASETS = 64
_REGISTERS_WITHIN_S = 10.0
_LOOK_AGAIN_S = 1.0
_WAITS_S = 30.0
"""A call waits this long at most: calls of processes that have died wait too, and would each get a turn."""
MOST_WAITING = 256
"""Calls that wait. Ray lets 1,024 calls of such an actor run: with all of them waiting, none could register."""

MakeBuilder: TypeAlias = Callable[[str, Dataset, Counters], BlockBuilder]


class RegisteredDatasets:
    """The newest 64 registered datasets.

    With a builder and counters of each for every thread that builds.

    The counters is of one thread, so the counts between two moments belong to one block. `make(dataset_id, dataset,
    counters)` makes a builder.
    """

    def __init__(self, make: MakeBuilder) -> None:
        self._make = make
        self._known: dict[str, tuple[Dataset, bytes]] = {}
        self._of_thread = threading.local()
        self._version = 0
        self._awaited: dict[str, tuple[Future[None], float]] = {}
        self._num_waiting = 0

    def register(self, dataset_id: str, payload: bytes) -> None:
        """Register `dataset_id`.

        Raises `TransformFailed` if its code cannot be loaded here.
        """
        try:
            self._known.pop(dataset_id, None)
            self._known[dataset_id] = unpack(payload), payload
            while len(self._known) > _MOST_DATASETS:
                del self._known[next(iter(self._known))]
        finally:
            if awaited := self._awaited.pop(dataset_id, None):
                awaited[0].set_result(None)

    async def wait_for_registration(self, dataset_id: str) -> None:
        """Wait while another caller registers `dataset_id`.

        Returns once it is known, or if this caller must register it. A payload has tens of MB, and at a start all ranks
        of a node, or all nodes of a run, ask for their first block at once. For one event loop.
        """
        until = time.monotonic() + _WAITS_S
        while dataset_id not in self._known and (now := time.monotonic()) < until:
            registration, give_up = self._awaited.get(dataset_id, (None, 0.0))
            if registration is None or now >= give_up:
                if registration is not None:
                    registration.set_result(None)
                self._awaited[dataset_id] = Future(), now + _REGISTERS_WITHIN_S
                return
            if self._num_waiting >= MOST_WAITING:
                return
            self._num_waiting += 1
            try:
                await asyncio.wait([asyncio.wrap_future(registration)], timeout=_LOOK_AGAIN_S)
            finally:
                self._num_waiting -= 1

    def __contains__(self, dataset_id: str) -> bool:
        return dataset_id in self._known

    def payload(self, dataset_id: str) -> bytes | None:
        """The dataset as it was registered.

        None if it is not known any more.
        """
        known = self._known.get(dataset_id)
        return known[1] if known else None

    def renew_builders(self) -> None:
        """Make new builders from now on, with other options."""
        self._version += 1

    def builder(self, dataset_id: str) -> tuple[BlockBuilder, Counters] | None:
        """Builder and counters of the calling thread.

        None if `dataset_id` is not registered.
        """
        made: dict[str, tuple[BlockBuilder, Counters, int]] = self._of_thread.__dict__
        found, version = made.get(dataset_id), self._version
        if found is None or found[2] != version:
            known = self._known.get(dataset_id)
            if known is None:
                return None
            while len(made) >= _MOST_DATASETS:
                del made[next(iter(made))]
            counters = Counters()
            made[dataset_id] = found = self._make(dataset_id, known[0], counters), counters, version
        return found[0], found[1]
