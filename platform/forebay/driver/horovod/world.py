"""One Horovod world: initialised and shut down within a process, which may go through many worlds in turn."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from forebay.driver.horovod.collective import HorovodCollective
from forebay.driver.horovod.watchdog import CollectiveWatchdog
from forebay.train.collectives.collective import Collective, SingleProcessCollective
from forebay.world import World

# Settings that Horovod reads from the environment, besides the ranks. A variable that is already set is kept.
SETTINGS: Mapping[str, str] = {
    # Horovod fuses tensors in the order in which they happen to arrive, which no later run repeats. Our buckets are
    # fixed.
    "HOROVOD_FUSION_THRESHOLD": "0",
    # Otherwise it logs every lost peer; the driver reports those.
    "HOROVOD_LOG_LEVEL": "fatal",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """A worker's place in one world. `number` counts the worlds of a run. `rendezvous` is the address where its ranks
    meet.

    `host` is the name by which Horovod knows the worker. Each worker is a host of its own with one slot, so that it
    comes and leaves alone.
    """

    number: int
    world: World
    host: str
    rendezvous: tuple[str, int] | None


@contextmanager
def horovod_world(place: RankAssignment, device: torch.device, hang_timeout_s: float) -> Iterator[Collective]:
    """Connect to the other ranks, and disconnect at the end of the block. A world of one needs no Horovod.

    Raises Horovod's own error if the world breaks. If a rank dies while the others wait for it here, Horovod ends their
    processes, because it cannot cancel the wait.
    """
    if place.world.size == 1:
        yield SingleProcessCollective(device)
        return
    import horovod.torch as hvd  # noqa: PLC0415 - an extra

    os.environ.update(_environment(place, hang_timeout_s))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    hvd.init()
    # Same as `hvd.shutdown()`, but keeps the handles of operations, which the waiting thread still uses.
    patience = CollectiveWatchdog(hang_timeout_s, hvd.mpi_ops._basics.shutdown)  # noqa: SLF001 - no public way
    try:
        yield HorovodCollective(place.world, device, patience)
    finally:
        patience.close()
        hvd.shutdown()


def _environment(place: RankAssignment, hang_timeout_s: float) -> dict[str, str]:
    assert place.rendezvous is not None, "ranks must meet"
    address, port = place.rendezvous
    rank, size, seconds = str(place.world.rank), str(place.world.size), str(math.ceil(hang_timeout_s))
    return {
        **{name: value for name, value in SETTINGS.items() if name not in os.environ},
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": seconds,
        "HOROVOD_HOSTNAME": place.host,
        **{f"HOROVOD_{scope}RANK": rank for scope in ("", "CROSS_")},
        **{f"HOROVOD_{scope}SIZE": size for scope in ("", "CROSS_")},
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
    }


def use_interface_of(address: str) -> None:
    """Bind this process's gloo to the network interface that has `address`, the node's address in Ray.

    Otherwise gloo would look up the host name, which may resolve to an address that no other node can reach.
    """
    import psutil  # noqa: PLC0415 - Horovod brings it

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            os.environ.setdefault("HOROVOD_GLOO_IFACE", name)
