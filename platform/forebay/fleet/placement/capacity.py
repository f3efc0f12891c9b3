"""Capacity of one cluster, as a small JSON document.

It has the free room per node shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from forebay.errors import InvalidOption
from forebay.runtime.declared_types import require_types

VERSION = 1
HEAD_POOL = "head"
"""Pool of the nodes that may run the head of a Ray cluster."""


class Shape(NamedTuple):
    """Resources: millicpus, bytes of memory and GPUs.

    A pod asks for them, or a node has them free.
    """

    cpu: int
    memory: int
    gpus: int = 0

    def holds(self, pod: Shape) -> bool:
        """Whether a pod fits into these resources."""
        return self.slots(pod) > 0

    def slots(self, pod: Shape) -> int:
        """Number of such pods that fit."""
        most = -1
        for free, asked in zip(self, pod, strict=True):
            if asked and (most < 0 or free // asked < most):
                most = max(0, free // asked)
        return max(0, most)

    def less(self, pod: Shape, count: int = 1) -> Shape:
        """Room that is left after `count` such pods."""
        return Shape(self.cpu - count * pod.cpu, self.memory - count * pod.memory, self.gpus - count * pod.gpus)


@dataclass(frozen=True, slots=True, order=True)
class NodeGroup:
    """Nodes with the same free resources and pools."""

    free: Shape
    pools: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Free resources of a cluster at one time.

    Attributes:
        cluster: Name of the cluster.
        observed_at: Time of the figures, by the clock of the one who places.
        nodes: Nodes with free room, grouped. A pool is `SKU/MARKET` or `head`.
        can_add: Pool -> nodes that an autoscaler could still add.
        pending_gpus: GPUs that waiting pods ask for.
        fault: Reason why nothing can be placed there, such as a server that does not answer.
    """

    cluster: str
    observed_at: float
    nodes: tuple[NodeGroup, ...] = ()
    can_add: Mapping[str, int] = field(default_factory=dict)
    pending_gpus: int = 0
    fault: str | None = None
    _most: dict[tuple[str, Shape, Shape | None], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def to_json(self) -> str:
        """Return a JSON document.

        The age of the figures is not in it: the clocks of two machines differ.
        """
        facts = {**asdict(self), "nodes": [[each.free._asdict(), each.pools, each.count] for each in self.nodes]}
        del facts["observed_at"], facts["_most"]
        return json.dumps({"version": VERSION, **facts}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, observed_at: float) -> Capacity:
        """Parse a document of `to_json`.

        `observed_at` is the time at which it was read. Raises `InvalidOption`.
        """
        try:
            facts: dict[str, Any] = json.loads(text)
            if facts.pop("version") != VERSION:
                raise ValueError("another version")
            nodes = [NodeGroup(Shape(**free), tuple(pools), count) for free, pools, count in facts.pop("nodes")]
            return require_types(cls(**facts, nodes=tuple(nodes), observed_at=observed_at))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidOption(
                f"this is not a capacity of version {VERSION} ({error}). Install the same version of Forebay in every "
                "cluster."
            ) from error

    def most(self, gang: Gang) -> int:
        """Return the largest worker count that fits now.

        Counted once for each kind of gang.
        """
        key = (gang.pool, gang.worker, gang.head)
        if (found := self._most.get(key)) is None:
            found = self._most[key] = gang.most(self.nodes)
        return found

    def free_slots(self, pool: str, worker: Shape) -> int:
        """Count workers that fit on nodes of `pool`."""
        return sum(each.count * each.free.slots(worker) for each in self.nodes if pool in each.pools)

    def grown(self, pool: str, machine: Shape) -> Capacity:
        """Return the capacity with `pool` at its largest.

        The autoscaler has added all the machines that it may add.
        """
        count = self.can_add.get(pool, 0)
        return replace(self, nodes=(*self.nodes, NodeGroup(machine, (pool,), count))) if count else self


def grouped(nodes: Iterable[NodeGroup]) -> tuple[NodeGroup, ...]:
    """Group equal nodes, in a fixed order.

    Those without any are left out.
    """
    counts: dict[tuple[Shape, tuple[str, ...]], int] = {}
    for each in nodes:
        key = (each.free, each.pools)
        counts[key] = counts.get(key, 0) + each.count
    return tuple(NodeGroup(free, pools, count) for (free, pools), count in sorted(counts.items()) if count)


class PoolRemainder(NamedTuple):
    """Effect of a gang on a pool.

    It has the empty nodes that the gang begins, and the empty nodes and GPUs (or CPUs) that it leaves. The smaller one
    keeps more nodes and clusters whole for large gangs.
    """

    begun: int
    empty: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods of one attempt that run together.

    They are workers on nodes of `pool`, and a head unless the cluster is shared.
    """

    pool: str
    worker: Shape
    workers: int
    head: Shape | None = None

    def pack(self, nodes: Iterable[NodeGroup]) -> tuple[NodeGroup, ...] | None:
        """Return the nodes after placing the gang, or None.

        The answer is exact: workers are equal, so only the head's node matters, and every kind of node is tried for it.
        Of equal ones, it goes where no worker can. Workers go to the fullest nodes first, which leaves whole nodes to
        later gangs.
        """
        groups = list(grouped(nodes))
        if self.head is None:
            return self._fill(groups)
        best: tuple[tuple[int, bool, Shape], list[NodeGroup]] | None = None
        for number, group in enumerate(groups):
            if HEAD_POOL not in group.pools or not group.free.holds(self.head):
                continue
            left = group.free.less(self.head)
            is_shared = self.pool in group.pools
            lost = group.free.slots(self.worker) - left.slots(self.worker) if is_shared else 0
            if best is None or (lost, is_shared, group.free) < best[0]:
                others = [*groups[:number], *groups[number + 1 :]]
                rest = NodeGroup(group.free, group.pools, group.count - 1)
                best = ((lost, is_shared, group.free), [*others, rest, NodeGroup(left, group.pools)])
        return None if best is None else self._fill(best[1])

    def head_fits_apart(self, nodes: Iterable[NodeGroup]) -> bool:
        """Whether the head fits on a node without workers."""
        head = self.head
        return head is not None and any(
            group.count and HEAD_POOL in group.pools and self.pool not in group.pools and group.free.holds(head)
            for group in nodes
        )

    def most(self, nodes: Iterable[NodeGroup]) -> int:
        """Return the largest worker count that fits.

        0 if the head does not fit.
        """
        slots, least_lost = 0, None
        for group in nodes:
            here = group.free.slots(self.worker) if self.pool in group.pools else 0
            slots += group.count * here
            if self.head is not None and group.count and HEAD_POOL in group.pools and group.free.holds(self.head):
                lost = here - group.free.less(self.head).slots(self.worker) if here else 0
                least_lost = lost if least_lost is None else min(lost, least_lost)
        if self.head is None:
            return slots
        return 0 if least_lost is None else slots - least_lost

    def remainder(self, nodes: Iterable[NodeGroup], machine: Shape) -> PoolRemainder:
        """Return the pool's free resources after packing the workers.

        `machine` is an empty node.
        """
        begun = empty = room = 0
        left = self.workers
        for group in sorted((each for each in nodes if self.pool in each.pools), key=_by_room):
            free, whole = (group.free.gpus, machine.gpus) if machine.gpus else (group.free.cpu, machine.cpu)
            # Pods of the cluster itself take a little of the CPUs of each node.
            is_empty = free >= 0.9 * whole
            slots = group.free.slots(self.worker)
            used = min(group.count, -(-left // slots)) if slots else 0
            left -= used * slots
            room += group.count * free
            if is_empty:
                begun, empty = begun + used, empty + group.count - used
        return PoolRemainder(begun, empty, room)

    def _fill(self, groups: list[NodeGroup]) -> tuple[NodeGroup, ...] | None:
        left, result = self.workers, []
        for group in sorted(groups, key=_by_room):
            slots = group.free.slots(self.worker) if self.pool in group.pools and left else 0
            if not slots or not group.count:
                result.append(group)
                continue
            full = min(group.count, left // slots)
            left -= full * slots
            result.append(NodeGroup(group.free.less(self.worker, slots), group.pools, full))
            rest = group.count - full
            if rest and left and left < slots:
                result.append(NodeGroup(group.free.less(self.worker, left), group.pools, 1))
                rest, left = rest - 1, 0
            result.append(NodeGroup(group.free, group.pools, rest))
        return None if left else grouped(result)


def _by_room(group: NodeGroup) -> tuple[Shape, tuple[str, ...]]:
    return group.free, group.pools
