"""Choice of the node that builds a block.

This node, or one of the data nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from forebay.data.cache.backoff import Backoff
from forebay.errors import Cancelled

_BUILDS_PER_CORE = 2
HERE = ""
"""Name of this node."""


@dataclass(slots=True)
class _Node:
    cores: float
    num_open: int = 0


class Dispatch:
    """Scheduler of builds among this node and data nodes.

    The node with the fewest open builds per core gets the next block. Of equal ones, a data node. Thread-safe.

    A node has at most `num_reads` open builds, or two per core if that is more. If it has no room, the block waits for
    it, as it would wait for longer on a more loaded node. A slow node has its builds open for longer, so it gets fewer.

    Args:
        cores: Cores of this node for data workers.
        num_reads: Least limit of open builds of each node.
        clock: Monotonic seconds.
    """

    def __init__(self, *, cores: float, num_reads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = threading.Condition()
        self._nodes = {HERE: _Node(cores)}
        # Kept for nodes that have left: an actor that dies of its work comes back under the same name.
        self._backoffs: dict[str, Backoff] = {}
        self._num_reads = num_reads
        self._clock = clock
        self._closed = False

    def set_limits(self, *, cores: float, num_reads: int) -> None:
        """Set the limits of this node.

        `cores` of this node, and the least limit of open builds of each node.
        """
        with self._changed:
            self._nodes[HERE].cores, self._num_reads = cores, num_reads
            self._changed.notify_all()

    def set_data_nodes(self, cores: Mapping[str, float]) -> None:
        """Set the available data nodes, with their cores.

        Others get no further blocks.
        """
        with self._changed:
            self._nodes = {HERE: self._nodes[HERE]} | {name: self._known(name, each) for name, each in cores.items()}
            self._changed.notify_all()

    @contextmanager
    def slot(self, *, only_here: bool = False) -> Iterator[str]:
        """Wait for a node with room. Yields its name.

        Counts a build as open on it during the block.

        Raises `Cancelled` once closed.
        """
        with self._changed:
            name = self._choice(only_here)
            while name is None and not self._closed:
                self._changed.wait()
                name = self._choice(only_here)
            if name is None or self._closed:
                raise Cancelled("the data workers were closed")
            node = self._nodes[name]
            node.num_open += 1
        try:
            yield name
        finally:
            with self._changed:
                node.num_open -= 1
                self._changed.notify_all()

    def record_failure(self, name: str) -> bool:
        """Skip the data node `name` for a while.

        Returns False if it was skipped already.
        """
        with self._changed:
            now, backoff = self._clock(), self._backoffs.get(name, Backoff())
            self._backoffs[name] = backoff.after_failure(now)
        return backoff.is_over(now)

    def record_success(self, name: str) -> None:
        """Reset the failures of the data node `name`."""
        with self._changed:
            if backoff := self._backoffs.get(name):
                self._backoffs[name] = backoff.after_success()

    def close(self) -> None:
        """End all waits with `Cancelled`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _known(self, name: str, cores: float) -> _Node:
        node = self._nodes.get(name) or _Node(cores)
        node.cores = cores
        return node

    def _choice(self, only_here: bool) -> str | None:
        now = self._clock()
        loads = [
            ((node.num_open + 1) / node.cores, name == HERE, name)
            for name, node in self._nodes.items()
            if name == HERE or (self._backoffs.get(name, Backoff()).is_over(now) and not only_here)
        ]
        name = min(loads)[2]
        node = self._nodes[name]
        return name if node.num_open < max(self._num_reads, _BUILDS_PER_CORE * node.cores) else None
