"""Named actor that holds a running sweep's status.

It passes on stop requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.errors import InvalidOption
from forebay.ray_cluster.actors import ANSWER_S, NAMESPACE, ask_all, find, find_or_refuse
from forebay.sweep.record.record import Record
from forebay.sweep.record.status import SweepStatus

PREFIX = "sweep-"
"""Prefix of the actor's name in `NAMESPACE`, before the name of the sweep."""


class SweepStatusActor:
    """Actor with a sweep's newest status and first stop request."""

    def __init__(self, status: SweepStatus) -> None:
        self._status = status
        self._stop: str | None = None

    def publish(self, status: SweepStatus) -> str | None:
        """Store the current status.

        Returns the reason of a requested stop, or None.
        """
        self._status = status
        return self._stop

    def read(self) -> SweepStatus:
        """Newest status."""
        return replace(self._status, stopping=self._stop)

    def request_stop(self, reason: str) -> None:
        """Request the end of the sweep."""
        self._stop = self._stop or reason


class SweepStatusClient:
    """The sweep's client of its status actor."""

    def __init__(self, actor: ActorHandle, path: str) -> None:
        self._actor, self._path = actor, path
        self._answer: ray.ObjectRef | None = None
        self._stop: str | None = None

    def publish(self, record: Record) -> None:
        """Publish the current status, without waiting."""
        self._read_answer()
        self._answer = self._actor.publish.remote(SweepStatus.of(record, self._path))

    @property
    def stop_reason(self) -> str | None:
        """Return the reason of a requested stop, or None.

        As of the call of `publish` before the last one.
        """
        self._read_answer()
        return self._stop

    def _read_answer(self) -> None:
        if self._answer is None or not ray.wait([self._answer], timeout=0)[0]:
            return
        self._stop = self._stop or ray.get(self._answer)
        self._answer = None


@contextmanager
def publish_status(record: Record, path: str) -> Iterator[SweepStatusClient]:
    """Keep a status actor of a sweep during the block.

    Raises `InvalidOption` if the sweep is already running.
    """
    node = ray.get_runtime_context().get_node_id()
    actor_class = ray.remote(SweepStatusActor).options(
        name=f"{PREFIX}{record.name}",
        namespace=NAMESPACE,
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    try:
        actor = actor_class.remote(SweepStatus.of(record, path))
    except ValueError as error:
        raise InvalidOption(
            f"a sweep named {record.name!r} is already running on this cluster. Wait for its end, or give this one "
            "another name.",
            name=record.name,
        ) from error
    try:
        yield SweepStatusClient(actor, path)
    finally:
        ray.kill(actor)


def list_sweeps() -> list[SweepStatus]:
    """Return the running sweeps of this cluster, by name."""
    found = ask_all(PREFIX, lambda board: board.read.remote())
    return sorted(found, key=lambda status: status.name)


def is_sweep(name: str) -> bool:
    """Whether a sweep of this name is running."""
    return find(PREFIX, name) is not None


def stop_sweep(name: str, reason: str) -> SweepStatus:
    """Request the end of a sweep. Returns its status.

    Each trial saves a checkpoint first.

    Raises `InvalidOption` for a sweep that is not running or is already ending.
    """
    actor = find_or_refuse(PREFIX, name, "sweep")
    try:
        status: SweepStatus = ray.get(actor.read.remote(), timeout=ANSWER_S)
        ray.get(actor.request_stop.remote(reason), timeout=ANSWER_S)
    except RayError as error:
        raise InvalidOption(
            f"sweep {name!r} has just ended, or its driver does not answer; no request was made. `forebay jobs --ray` "
            "lists running sweeps.",
            name=name,
        ) from error
    return status
