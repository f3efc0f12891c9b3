"""Where a sweep under way is found: a named actor that says how it stands, and passes on that it shall end."""

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
"""Before a sweep's name: the name of its board in `NAMESPACE`."""


class SweepStatusActor:
    """The actor: what the sweep last said of itself, and the first reason that anybody gave to end it."""

    def __init__(self, standing: SweepStatus) -> None:
        self._standing = standing
        self._stop: str | None = None

    def pin(self, standing: SweepStatus) -> str | None:
        """How the sweep stands now; the answer is why it shall end, None as long as it shall not."""
        self._standing = standing
        return self._stop

    def read(self) -> SweepStatus:
        """How it stood last."""
        return replace(self._standing, stopping=self._stop)

    def ask_stop(self, reason: str) -> None:
        """Ask for its end."""
        self._stop = self._stop or reason


class SweepStatusClient:
    """The sweep's own end of its board."""

    def __init__(self, actor: ActorHandle, path: str) -> None:
        self._actor, self._path = actor, path
        self._answer: ray.ObjectRef | None = None
        self._stop: str | None = None

    def show(self, record: Record) -> None:
        """Say how the sweep stands; waits for nothing."""
        self._hear()
        self._answer = self._actor.pin.remote(SweepStatus.of(record, self._path))

    @property
    def stop_reason(self) -> str | None:
        """Why the sweep shall end, as of the call of `show` before the last one; None as long as it shall not."""
        self._hear()
        return self._stop

    def _hear(self) -> None:
        if self._answer is None or not ray.wait([self._answer], timeout=0)[0]:
            return
        self._stop = self._stop or ray.get(self._answer)
        self._answer = None


@contextmanager
def open_board(record: Record, path: str) -> Iterator[SweepStatusClient]:
    """The board of a sweep for the length of the block. Raises `InvalidOption` where the sweep is under way."""
    node = ray.get_runtime_context().get_node_id()
    placed = ray.remote(SweepStatusActor).options(
        name=f"{PREFIX}{record.name}",
        namespace=NAMESPACE,
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    try:
        actor = placed.remote(SweepStatus.of(record, path))
    except ValueError as error:
        raise InvalidOption(
            f"a sweep named {record.name!r} is under way on this cluster. Wait for its end, or give this one another "
            "name.",
            name=record.name,
        ) from error
    try:
        yield SweepStatusClient(actor, path)
    finally:
        ray.kill(actor)


def sweeps() -> list[SweepStatus]:
    """The sweeps that are under way on the cluster this process is connected to, by name."""
    found = ask_all(PREFIX, lambda board: board.read.remote())
    return sorted(found, key=lambda standing: standing.name)


def is_sweep(name: str) -> bool:
    """Whether a sweep of this name is under way."""
    return find(PREFIX, name) is not None


def stop_sweep(name: str, reason: str) -> SweepStatus:
    """Ask a sweep to end, its trials after a commit; returns how it stood.

    Raises `InvalidOption` for one that is not there, or ends at this moment.
    """
    actor = find_or_refuse(PREFIX, name, "sweep")
    try:
        standing: SweepStatus = ray.get(actor.read.remote(), timeout=ANSWER_S)
        ray.get(actor.ask_stop.remote(reason), timeout=ANSWER_S)
    except RayError as error:
        raise InvalidOption(
            f"sweep {name!r} has ended meanwhile, or its driver does not answer; nothing was asked of it. `forebay ps` "
            "lists what is under way.",
            name=name,
        ) from error
    return standing
