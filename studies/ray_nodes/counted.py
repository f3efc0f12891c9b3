"""Calls that the actors of a run receive, written to a file by each of their processes.

`counting` lets all processes of a Ray that starts in its block do so.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray
from ray.actor import ActorHandle

from forebay.data.cache.node.actor import NodeCache, RayPeerTransport
from forebay.data.cache.node.peer_lookup import PeerLookup
from forebay.training.checkpoint.memory_store_actor import StoreActor
from forebay.training.checkpoint.part_memory.actor import PartStoreActor
from forebay.training.checkpoint.part_memory.store import KeptPart
from forebay.training.driver.elastic.coordinator import Coordinator

ACTORS = (Coordinator, StoreActor, PartStoreActor, NodeCache)
ASKING = ((PeerLookup, "find"), (RayPeerTransport, "ask_filters"))
"""Methods in a cache's process that ask other nodes. They are not messages: their bytes are 0."""
HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""Variable in which Ray 2.60 names a function that each worker calls first."""
FOLDER = "FOREBAY_COUNTED"
HANDLE_BYTES = 700
"""Of a handle of an actor, about, when it is sent."""
ROOT = Path(__file__).parents[2]
_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedCall:
    """A call that an actor has answered.

    `at` is when it came, and `took_s` later it was answered. `subject`: the first argument if it is a number or text,
    the length of a list, the step of a part, or the class of an event. `cpu_s` is the CPU time of the process until
    the answer, without what counting took.
    """

    actor: str
    pid: int
    method: str
    at: float
    took_s: float
    subject: str
    num_bytes: int
    cpu_s: float


class _Sizer(cloudpickle.Pickler):  # type: ignore[misc]
    def persistent_id(self, value: object) -> bytes | None:
        # Not one object for all: pickle would write it once.
        return bytes(HANDLE_BYTES) if isinstance(value, ActorHandle | ray.ObjectRef) else None


def size_of(value: object) -> int:
    """Bytes of a value in a message."""
    buffer = io.BytesIO()
    _Sizer(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.tell()


class _Log:
    """File of this process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._own_s = 0.0

    def write(self, actor: str, method: str, at: float, subject: str, sent: Sequence[object]) -> None:
        began = time.thread_time()
        cpu_s = time.process_time() - self._own_s
        row = [actor, os.getpid(), method, at, time.time() - at, subject, sum(map(size_of, sent)), cpu_s]
        self._file.write(json.dumps(row) + "\n")
        self._own_s += time.thread_time() - began


def install() -> None:
    """Count in this process. Ray calls it at the start of each worker."""
    log = _Log(Path(os.environ[FOLDER]) / f"{os.getpid()}.calls")
    for actor in ACTORS:
        for name, method in inspect.getmembers(actor, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                setattr(actor, name, _counted(log, actor, name, method))
    for owner, name in ASKING:
        setattr(owner, name, _noted(log, owner.__name__, getattr(owner, name)))


def _counted(log: _Log, actor: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: object, *arguments: object, **named: object) -> object:
        if _is_inside.get():  # an actor's call of its own method is no message
            return await method(self, *arguments, **named)
        _is_inside.set(True)
        answer, at = None, time.time()
        try:
            answer = await method(self, *arguments, **named)
        finally:
            log.write(actor.__name__, name, at, _subject(arguments), [arguments, named, answer])
            _is_inside.set(False)
        return answer

    # An inherited method has the name of its base class. Pickled by the name of its own, it is not copied with its log.
    call.__module__, call.__qualname__ = actor.__module__, f"{actor.__qualname__}.{name}"
    return call


def _noted(log: _Log, owner: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: object, *arguments: object, **named: object) -> object:
        at = time.time()
        answer = method(self, *arguments, **named)
        log.write(owner, method.__name__, at, _subject(arguments), [])
        return answer

    return call


def _subject(arguments: Sequence[object]) -> str:
    first = arguments[0] if arguments else ""
    if isinstance(first, KeptPart):
        return str(first.step)
    if isinstance(first, int | str):
        return str(first)
    return str(len(first)) if isinstance(first, list) else type(first).__name__


@contextmanager
def counting(folder: Path) -> Iterator[None]:
    """Let workers of a Ray that starts in this block write their calls below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOOK, f"{__name__}.{install.__name__}")
        patch.setenv(FOLDER, str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield


def received(folder: Path) -> list[ReceivedCall]:
    """All calls, in the order in which they came."""
    found, names = list[ReceivedCall](), [field.name for field in fields(ReceivedCall)]
    for path in folder.glob("*.calls"):
        rows = map(json.loads, path.read_text().splitlines())
        found += (ReceivedCall(**dict(zip(names, row, strict=True))) for row in rows)
    return sorted(found, key=lambda call: call.at)


def by_method(calls: Sequence[ReceivedCall]) -> Counter[str]:
    """Number of calls by actor and method."""
    return Counter(f"{call.actor}.{call.method}" for call in calls)
