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
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray
from ray.actor import ActorHandle

from forebay.data.cache.node.actor import NodeCache
from forebay.training.checkpoint.memory_store_actor import StoreActor
from forebay.training.checkpoint.part_memory.actor import PartStoreActor
from forebay.training.driver.elastic.coordinator import Coordinator

ACTORS = (Coordinator, StoreActor, PartStoreActor, NodeCache)
HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""Variable in which Ray 2.60 names a function that each worker calls first."""
FOLDER = "FOREBAY_COUNTED"
HANDLE = bytes(700)
"""In place of a handle, which has about this size when it is sent."""
ROOT = Path(__file__).parents[2]
_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedCall:
    """A call that an actor has answered.

    `cpu_s` is the CPU time of its process until then, without what counting took.
    """

    actor: str
    pid: int
    method: str
    at: float
    num_bytes: int
    cpu_s: float


class _Sizer(cloudpickle.Pickler):  # type: ignore[misc]
    def persistent_id(self, value: object) -> bytes | None:
        return HANDLE if isinstance(value, ActorHandle | ray.ObjectRef) else None


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

    def write(self, actor: str, method: str, sent: Sequence[object]) -> None:
        began = time.thread_time()
        cpu_s = time.process_time() - self._own_s
        row = [actor, os.getpid(), method, time.time(), sum(map(size_of, sent)), cpu_s]
        self._file.write(json.dumps(row) + "\n")
        self._own_s += time.thread_time() - began


def install() -> None:
    """Count in this process. Ray calls it at the start of each worker."""
    log = _Log(Path(os.environ[FOLDER]) / f"{os.getpid()}.calls")
    for actor in ACTORS:
        for name, method in inspect.getmembers(actor, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                setattr(actor, name, _counted(log, actor, name, method))


def _counted(log: _Log, actor: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: object, *arguments: object, **named: object) -> object:
        if _is_inside.get():  # an actor's call of its own method is no message
            return await method(self, *arguments, **named)
        _is_inside.set(True)
        answer = None
        try:
            answer = await method(self, *arguments, **named)
        finally:
            log.write(actor.__name__, name, [arguments, named, answer])
            _is_inside.set(False)
        return answer

    # An inherited method has the name of its base class. Pickled by the name of its own, it is not copied with its log.
    call.__module__, call.__qualname__ = actor.__module__, f"{actor.__qualname__}.{name}"
    return call


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
    """All calls, in the order of time."""
    found = []
    for path in folder.glob("*.calls"):
        for line in path.read_text().splitlines():
            actor, pid, method, at, num_bytes, cpu_s = json.loads(line)
            found.append(ReceivedCall(actor=actor, pid=pid, method=method, at=at, num_bytes=num_bytes, cpu_s=cpu_s))
    return sorted(found, key=lambda call: call.at)


def by_method(calls: Sequence[ReceivedCall]) -> Counter[str]:
    """Number of calls by actor and method."""
    return Counter(f"{call.actor}.{call.method}" for call in calls)
