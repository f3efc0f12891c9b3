"""Counting of a cluster's nodes and pods into its `Capacity`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from forebay.fleet.cluster import Cluster
from forebay.fleet.placement.capacity import HEAD_POOL, Capacity, NodeGroup, Shape, grouped
from forebay.fleet.spec.quantity import quantity

Facts = Mapping[str, Any]
_ENDED = ("Succeeded", "Failed")
_KEEPING_AWAY = ("NoSchedule", "NoExecute")


@dataclass(slots=True)
class NodeRow:
    """Fields of a node that counting needs.

    `free` is what is allocatable, less the pods that were subtracted.
    """

    name: str
    free: Shape
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodRow:
    """Fields of a pod that counting needs.

    `node` is empty while it waits.
    """

    node: str
    asks: Shape
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Facts, ...] = ()


def count(cluster: Cluster, nodes: Iterable[Facts], pods: Iterable[Facts], now: float) -> Capacity:
    """Count the capacity of a cluster.

    Nodes and pods are JSON of the API server. Both may be streams. A pod holds its node until it ended, also while it
    is being deleted. Nodes that are cordoned, not ready, or tainted against a SKU give it nothing. Waiting pods take
    the first node that holds them, before us.
    """
    gpu_names = {sku.gpu_resource for sku in cluster.sku.values()}
    labels: dict[str, Facts] = {}
    rows: dict[str, NodeRow] = {}
    totals: dict[str, int] = {}
    for node in nodes:
        name = node["metadata"]["name"]
        pools = _pools(cluster, node)
        for pool in pools:
            totals[pool] = totals.get(pool, 0) + 1
        if pools and _is_open(node):
            rows[name] = NodeRow(name, _shape(node["status"].get("allocatable") or {}, gpu_names), pools)
            labels[name] = {"labels": node["metadata"].get("labels") or {}, "taints": _taints(node)}
    waiting: list[PodRow] = []
    for pod in pods:
        row = pod_row(pod, gpu_names)
        if row is None:
            continue
        if not row.node:
            waiting.append(row)
        elif row.node in rows:
            rows[row.node].free = rows[row.node].free.less(row.asks)
    for row in waiting:
        _take_first(row, rows, labels)
    return Capacity(
        cluster=cluster.name,
        observed_at=now,
        nodes=grouped(NodeGroup(row.free, row.pools) for row in rows.values()),
        can_add={
            f"{name}/{market}": max(0, sku.most_nodes - totals.get(f"{name}/{market}", 0))
            for name, sku in cluster.sku.items()
            for market in sku.markets
            if sku.most_nodes
        },
        pending_gpus=sum(row.asks.gpus for row in waiting),
    )


def pod_row(pod: Facts, gpu_names: Iterable[str]) -> PodRow | None:
    """Row of a pod, or None for one that ended."""
    spec, status = pod["spec"], pod.get("status") or {}
    if status.get("phase") in _ENDED:
        return None
    return PodRow(
        node=spec.get("nodeName") or "",
        asks=_requests(spec, tuple(gpu_names)),
        selector=spec.get("nodeSelector") or {},
        tolerations=tuple(spec.get("tolerations") or ()),
    )


def _requests(spec: Facts, gpu_names: tuple[str, ...]) -> Shape:
    """Return the resources that a pod takes.

    They are its containers and sidecars, or a step of its start if that is more, and the overhead.
    """
    total = _sum(_asked(each, gpu_names) for each in spec["containers"])
    sidecars, largest_start = Shape(0, 0), Shape(0, 0)
    for each in spec.get("initContainers") or ():
        asked = _asked(each, gpu_names)
        if each.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, asked))
            largest_start = _largest(largest_start, sidecars)
        else:
            largest_start = _largest(largest_start, _sum((sidecars, asked)))
    return _sum((_largest(_sum((total, sidecars)), largest_start), _shape(spec.get("overhead") or {}, gpu_names)))


def _asked(container: Facts, gpu_names: tuple[str, ...]) -> Shape:
    resources = container.get("resources") or {}
    # A limit without a request is the request, too.
    return _shape({**(resources.get("limits") or {}), **(resources.get("requests") or {})}, gpu_names)


def _sum(shapes: Iterable[Shape]) -> Shape:
    cpu = memory = gpus = 0
    for each in shapes:
        cpu, memory, gpus = cpu + each.cpu, memory + each.memory, gpus + each.gpus
    return Shape(cpu, memory, gpus)


def _largest(one: Shape, other: Shape) -> Shape:
    return Shape(max(one.cpu, other.cpu), max(one.memory, other.memory), max(one.gpus, other.gpus))


def _shape(resources: Facts, gpu_names: Iterable[str]) -> Shape:
    def of(name: str) -> Decimal:
        return quantity(str(resources.get(name, "0")))

    return Shape(int(of("cpu") * 1000), int(of("memory")), int(sum(of(name) for name in gpu_names)))


def _pools(cluster: Cluster, node: Facts) -> tuple[str, ...]:
    """Return the pools of a node.

    They are SKU and market by its labels, and the head's.
    """
    labels, taints = node["metadata"].get("labels") or {}, _taints(node)
    is_spot = any(_fits(labels, each) for each in cluster.spot_selectors)
    pools = [
        f"{name}/{market}"
        for name, sku in cluster.sku.items()
        for market in sku.markets
        if _fits(labels, sku.selector(market))
        and _tolerates(sku.tolerated(market), taints)
        and not (market == "on-demand" and is_spot)
    ]
    if _fits(labels, cluster.head_node_selector) and _tolerates(cluster.head_tolerations, taints) and not is_spot:
        pools.append(HEAD_POOL)
    return tuple(sorted(pools))


def _is_open(node: Facts) -> bool:
    conditions = node["status"].get("conditions") or ()
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return is_ready and not node["spec"].get("unschedulable") if "spec" in node else is_ready


def _taints(node: Facts) -> tuple[Facts, ...]:
    taints = (node.get("spec") or {}).get("taints") or ()
    return tuple(taint for taint in taints if taint.get("effect") in _KEEPING_AWAY)


def _fits(labels: Facts, selector: Facts) -> bool:
    return all(labels.get(name) == value for name, value in selector.items())


def _tolerates(tolerations: Iterable[Facts], taints: Iterable[Facts]) -> bool:
    known = tuple(tolerations)
    return all(any(_covers(each, taint) for each in known) for taint in taints)


def _covers(toleration: Facts, taint: Facts) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and toleration.get("value", "") == taint.get("value", "")


def _take_first(row: PodRow, rows: Mapping[str, NodeRow], facts: Mapping[str, Facts]) -> None:
    for name, node in rows.items():
        fits = _fits(facts[name]["labels"], row.selector) and _tolerates(row.tolerations, facts[name]["taints"])
        if fits and (row.asks == Shape(0, 0) or node.free.holds(row.asks)):
            node.free = node.free.less(row.asks)
            return
