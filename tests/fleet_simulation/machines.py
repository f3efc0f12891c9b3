"""Nodes of a simulated cluster, with their pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.fleet.placement.capacity import HEAD_POOL, Gang, NodeGroup, Shape, grouped

Bucket = tuple[Shape, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class BoundPod:
    """Pod on a node."""

    node: int
    asks: Shape


class SimulatedNodes:
    """Nodes of a cluster, by number.

    Equal ones are kept together, so that a thousand cost no more than a few.
    """

    def __init__(self, groups: Iterable[NodeGroup]) -> None:
        self._free: list[Shape] = []
        self._pools: list[tuple[str, ...]] = []
        self._buckets: dict[Bucket, set[int]] = {}
        self._groups: tuple[NodeGroup, ...] | None = None
        for group in groups:
            for _ in range(group.count):
                self._free.append(group.free)
                self._pools.append(group.pools)
                self._put(len(self._free) - 1)
        self.total_gpus = sum(free.gpus for free in self._free)

    def __len__(self) -> int:
        return len(self._free)

    @property
    def groups(self) -> tuple[NodeGroup, ...]:
        """Free room, grouped."""
        if self._groups is None:
            self._groups = grouped(NodeGroup(free, pools, len(nodes)) for (free, pools), nodes in self._buckets.items())
        return self._groups

    def bind(self, gang: Gang) -> list[BoundPod] | None:
        """Bind all pods of a gang, or none."""
        if gang.most(self.groups) < gang.workers:
            return None
        pods = [self._bind(self._head_bucket(gang), gang.head)] if gang.head is not None else []
        while len(pods) < gang.workers + (gang.head is not None):
            fitting = [b for b in self._buckets if gang.pool in b[1] and b[0].holds(gang.worker)]
            pods.append(self._bind(min(fitting), gang.worker))
        return pods

    def release(self, pods: Sequence[BoundPod]) -> None:
        """Free the room of pods."""
        for pod in pods:
            free = self._free[pod.node]
            self._move(
                pod.node, Shape(free.cpu + pod.asks.cpu, free.memory + pod.asks.memory, free.gpus + pod.asks.gpus)
            )

    def _head_bucket(self, gang: Gang) -> Bucket:
        assert gang.head is not None
        head = gang.head

        def lost(bucket: Bucket) -> tuple[int, Shape]:
            free, pools = bucket
            in_pool = gang.pool in pools
            return (free.slots(gang.worker) - free.less(head).slots(gang.worker) if in_pool else 0, free)

        return min((b for b in self._buckets if HEAD_POOL in b[1] and b[0].holds(head)), key=lost)

    def _bind(self, bucket: Bucket, asks: Shape) -> BoundPod:
        node = next(iter(self._buckets[bucket]))
        self._move(node, bucket[0].less(asks))
        return BoundPod(node, asks)

    def _move(self, node: int, free: Shape) -> None:
        assert min(free.cpu, free.memory, free.gpus) >= 0, "a node was given away twice"
        bucket = (self._free[node], self._pools[node])
        self._buckets[bucket].remove(node)
        if not self._buckets[bucket]:
            del self._buckets[bucket]
        self._free[node] = free
        self._put(node)

    def _put(self, node: int) -> None:
        self._groups = None
        self._buckets.setdefault((self._free[node], self._pools[node]), set()).add(node)
