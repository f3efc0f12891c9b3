"""One Horovod world, initialized and shut down.

A process may go through many worlds in turn.
"""

from __future__ import annotations

import math
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from forebay.runtime.foreign_code import begin
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.driver.horovod.collective import HorovodCollective
from forebay.world import World

# Settings that Horovod reads from the environment, besides the ranks. A variable that is already set is kept.
SETTINGS: Mapping[str, str] = {
    # Horovod fuses tensors in the order in which they happen to arrive, which no later run repeats. Our buckets are
    # fixed.
    "HOROVOD_FUSION_THRESHOLD": "0",
    # Otherwise it logs every lost peer; the driver reports those.
    "HOROVOD_LOG_LEVEL": "fatal",
}
_RENDEZVOUS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
CHECKS = 20
"""Number of checks per time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """A worker's rank in one world.

    `number` counts the worlds of a run. `rendezvous` is the address where its ranks meet. `host` is the name by which
    Horovod knows the worker. Each worker is a host of its own with one slot, so that it comes and leaves alone.
    """

    number: int
    world: World
    host: str
    rendezvous: tuple[str, int] | None


@contextmanager
def horovod_world(assignment: RankAssignment, device: torch.device, hang_timeout_s: float) -> Iterator[Collective]:
    """Connect to the other ranks during the block.

    A world of one needs no Horovod.

    Raises Horovod's own error if the world breaks. If a rank dies while the others wait for it here, Horovod ends their
    processes, because it cannot cancel the wait.
    """
    if assignment.world.size == 1:
        yield SingleProcessCollective(device)
        return
    import horovod.torch as hvd  # noqa: PLC0415 - an extra

    os.environ.update(_environment(assignment, hang_timeout_s))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    watched = _watched_sockets()
    hvd.init()
    connections = _new_connections(watched)
    # Same as `hvd.shutdown()`, but keeps the handles of operations, which the waiting thread still uses.
    patience = CollectiveWatchdog(hang_timeout_s, hvd.mpi_ops._basics.shutdown)  # noqa: SLF001 - no public way
    is_whole = False
    try:
        yield HorovodCollective(assignment.world, device, patience)
        is_whole = True
    finally:
        patience.close()
        if not is_whole:
            _cut(connections)
        hvd.shutdown()


def _watched_sockets() -> list[dict[int, int]]:
    """Sockets of each event loop (epoll) of this process: inode by descriptor. None where there is no /proc."""
    loops = []
    for descriptor in Path("/proc/self/fdinfo").glob("*"):
        with suppress(FileNotFoundError):
            found = re.findall(r"^tfd: *(\d+) .* ino:([0-9a-f]+)", descriptor.read_text(), re.MULTILINE)
            inodes = {int(number): int(inode, 16) for number, inode in found}
            loops.append({number: inode for number, inode in inodes.items() if _is_socket(number, inode)})
    return loops


def _is_socket(descriptor: int, inode: int) -> bool:
    with suppress(OSError):
        status = os.fstat(descriptor)
        return stat.S_ISSOCK(status.st_mode) and status.st_ino == inode
    return False


def _new_connections(watched: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Sockets of event loops that began after `watched` ones: gloo's, to other ranks. Inode by descriptor."""
    known = {inode for sockets in watched for inode in sockets.values()}
    new = [sockets for sockets in _watched_sockets() if known.isdisjoint(sockets.values())]
    return {number: inode for sockets in new for number, inode in sockets.items()}


def _cut(connections: Mapping[int, int]) -> None:
    """Close connections to the ranks of a broken world.

    Horovod 0.28.1 keeps them: its shutdown waits for its thread, which waits for the first rank, which may wait for a
    rank that waits for this one. With one connection of four ranks cut in the middle of a reduction, two ranks stood in
    the shutdown and two in the reduction, until the time limit. After a shutdown it keeps them until another world.
    """
    for number, inode in connections.items():
        with suppress(OSError):
            duplicate = os.dup(number)
            with socket.socket(fileno=duplicate) as connection:
                # The number may belong to another file by now.
                if os.fstat(duplicate).st_ino == inode:
                    connection.shutdown(socket.SHUT_RDWR)


def _environment(assignment: RankAssignment, hang_timeout_s: float) -> dict[str, str]:
    assert assignment.rendezvous is not None, "ranks must meet"
    address, port = assignment.rendezvous
    return {
        **{name: value for name, value in SETTINGS.items() if name not in os.environ},
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        _RENDEZVOUS: address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(hang_timeout_s)),
        "HOROVOD_HOSTNAME": assignment.host,
        **_rank_variables(assignment.world),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
    }


def _rank_variables(world: World) -> dict[str, str]:
    scopes = ("", "CROSS_")
    return {
        f"HOROVOD_{scope}{name}": str(value)
        for scope in scopes
        for name, value in (("RANK", world.rank), ("SIZE", world.size))
    }


class CollectiveWatchdog:
    """Time limit around every wait for other ranks.

    After `timeout_s` seconds in one context, `give_up` is called once. It is called in another thread, and must unblock
    the waiting one. Contexts are entered by one thread, not nested.

    Over gloo, Horovod 0.28.1 itself would wait for missing ranks forever. Its stall check looks for them in
    `global_ranks_`, a vector that `GlooController::DoInitialization` reserves and never resizes. Over gloo it is empty,
    so no rank is ever reported as missing.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], object]) -> None:
        self._timeout_s, self._give_up = timeout_s, give_up
        self._since: float | None = None
        self._over = threading.Event()
        self._thread = begin(threading.Thread(target=self._watch, name="forebay-patience", daemon=True))

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: object, frames: TracebackType | None) -> None:
        self._since = None

    def close(self) -> None:
        """Stop watching.

        Waits for a call of `give_up` that is under way. None follows.
        """
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._timeout_s / CHECKS):
            since = self._since
            if since is not None and time.monotonic() - since > self._timeout_s:
                self._give_up()
                return
