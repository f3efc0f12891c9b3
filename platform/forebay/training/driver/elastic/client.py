"""Remote control of the runs on a cluster.

Status, target and stop. `ray._private.services.find_gcs_addresses` returns all Ray clusters of this machine, also those
that a run started for itself. tests/ray/training/driver/elastic/test_client.py fails when it changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private.services import find_gcs_addresses
from ray.actor import ActorHandle

from forebay.errors import InvalidOption
from forebay.ray_cluster.actors import ANSWER_S, RUN_PREFIX, ask_all, find, find_or_refuse, names_of
from forebay.ray_cluster.session import ADDRESS, connect
from forebay.training.runs.status import RunStatus, validate_target

WHO = "remote control"


@contextmanager
def reach_cluster() -> Iterator[None]:
    """Keep a connection to Ray during the block.

    This process's own, or to the cluster at `RAY_ADDRESS` or on this machine. Raises `InvalidOption` if there is no
    cluster, if it does not answer, or if this machine has several.
    """
    if ray.is_initialized():
        yield
        return
    connect(os.environ.get(ADDRESS) or _only_address_here())
    try:
        yield
    finally:
        ray.shutdown()


def names(prefix: str = "") -> list[str]:
    """Return the names of active runs with a prefix.

    Sends no request to the runs.
    """
    return names_of(RUN_PREFIX, prefix)


def runs(prefix: str = "", wait_s: float = ANSWER_S) -> list[RunStatus]:
    """Return the status of active runs, sorted by name.

    Of those whose names begin with `prefix`. Leaves out a run that does not answer within `wait_s` seconds.
    """
    found = ask_all(RUN_PREFIX, lambda coordinator: coordinator.status.remote(), begin=prefix, wait_s=wait_s)
    return sorted(found, key=lambda status: status.name)


def scale(name: str, target: int) -> RunStatus:
    """Set the target of the run `name`.

    Returns its status from before the change.

    Raises `InvalidOption` for an unknown run, a run that is not elastic, and a target out of its bounds. Then nothing
    is changed.
    """
    coordinator = _coordinator(name)
    status: RunStatus = ray.get(coordinator.status.remote(), timeout=ANSWER_S)
    validate_target(name, target, status.min_workers, status.max_workers)
    ray.get(coordinator.set_target.remote(target, WHO), timeout=ANSWER_S)
    return status


def stop(name: str, reason: str) -> RunStatus:
    """Ask the run `name` to save a checkpoint and end.

    Returns its status from before. Raises `InvalidOption` for an unknown name.
    """
    coordinator = _coordinator(name)
    status: RunStatus = ray.get(coordinator.status.remote(), timeout=ANSWER_S)
    ray.get(coordinator.request_stop.remote(reason, WHO), timeout=ANSWER_S)
    return status


def request_target(name: str, target: int) -> None:
    """Set the target of the run `name`, within its bounds.

    Does not wait. Ignores a run that has ended.
    """
    if (coordinator := find(RUN_PREFIX, name)) is not None:
        coordinator.set_target.remote(target, WHO)


def request_stop(name: str, reason: str) -> None:
    """Ask the run `name` to save a checkpoint and end.

    Does not wait. Ignores a run that has ended.
    """
    if (coordinator := find(RUN_PREFIX, name)) is not None:
        coordinator.request_stop.remote(reason, WHO)


def _only_address_here() -> str:
    """Return the address of this machine's only Ray cluster.

    Raises `InvalidOption` if there is none, or more than one.
    """
    addresses = sorted(find_gcs_addresses())
    if not addresses:
        raise InvalidOption(
            f"there is no cluster to ask: {ADDRESS} is not set, and no Ray runs on this machine. Set {ADDRESS} to the "
            "host:port of a cluster's head, or call this while a run is under way here. Runs with driver='local' are "
            "not seen: they use no Ray."
        )
    if len(addresses) > 1:
        raise InvalidOption(
            f"{len(addresses)} Rays run on this machine: {', '.join(addresses)}. Set {ADDRESS} to the one you mean.",
            addresses=addresses,
        )
    return str(addresses[0])


def _coordinator(name: str) -> ActorHandle:
    return find_or_refuse(RUN_PREFIX, name, "run")
