"""Clients of hdfs-native.

One per process, NameNode and settings. One whose NameNode fell silent is replaced.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from forebay.runtime.extras import extra_package
from forebay.runtime.foreign_code import replaced_errors
from forebay.storage.credentials import redact
from forebay.storage.hadoop.native import hdfs_native

T = TypeVar("T")

SILENT_S = 10.0
"""A client with a NameNode call that is unanswered for so long is replaced: it may never answer."""

# hdfs-native asks a NameNode that is down for more than 100 s by default. Two attempts ask both of a pair.
ONCE = (
    ("dfs.client.failover.max.attempts", "2"),
    ("dfs.client.failover.sleep.base.millis", "100"),
    ("dfs.client.failover.sleep.max.millis", "500"),
    ("dfs.client.socket-timeout", "20000"),
)
# Errors of a server hold its Java stack, escaped or not.
_JAVA_STACK = re.compile(r"(\\n|\n)(\\t|\t)at .*", re.DOTALL)


class HadoopAddress(NamedTuple):
    """Address and settings of a client.

    An empty `url` is `fs.defaultFS`.
    """

    url: str
    settings: tuple[tuple[str, str], ...] = ()
    kerberos: tuple[tuple[str, str], ...] = ()


class _TrackedClient:
    """A client, and when its open NameNode calls began."""

    def __init__(self, address: HadoopAddress) -> None:
        with extra_package("hdfs-native", address.url or "hdfs:///"):
            package = hdfs_native()
        self.client = package.Client(address.url or None, dict(address.settings), **dict(address.kerberos))
        self._began: dict[object, float] = {}

    @contextmanager
    def call(self) -> Iterator[Any]:
        mark = object()
        self._began[mark] = time.monotonic()
        try:
            yield self.client
        finally:
            del self._began[mark]

    def is_silent(self) -> bool:
        return any(time.monotonic() - began > SILENT_S for began in list(self._began.values()))


_clients: dict[HadoopAddress, _TrackedClient] = {}
_lock = threading.Lock()


def ask_name_node(address: HadoopAddress, ask: Callable[[Any], T]) -> T:
    """Call `ask` with this process's client for `address`.

    Raises:
        MissingPackage: hdfs-native is missing or too old.
        PermissionError: The user may not do this.
        OSError: Everything else, without the server's Java stack.
    """
    with plain_errors(), _tracked(address).call() as client:
        return ask(client)


def _tracked(address: HadoopAddress) -> _TrackedClient:
    with _lock:
        known = _clients.get(address)
        if known is None or known.is_silent():
            known = _clients[address] = _TrackedClient(address)
        return known


def _leave_to_parent() -> None:
    global _lock  # noqa: PLW0603 - another thread may hold it in the moment of a fork
    _lock = threading.Lock()
    for known in _clients.values():
        # Never freed: its end would wait for threads that a forked child does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(known.client))
    _clients.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def plain_errors() -> Any:
    """Raise errors of hdfs-native as `OSError` or `PermissionError`."""
    return replaced_errors(_plain, (RuntimeError, OSError), is_cause_shown=False)


def _plain(error: Exception) -> Exception:
    text = redact(_JAVA_STACK.sub("", str(error)))
    if "AccessControlException" in text:
        return PermissionError(text)
    return OSError(text) if isinstance(error, RuntimeError) else type(error)(text)
