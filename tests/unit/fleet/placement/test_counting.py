"""Counting rules: pods that hold room, and excluded nodes."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.fleet.cluster import Cluster, Sku
from forebay.fleet.placement.capacity import Capacity, Shape
from forebay.fleet.placement.counting import count

GIB = 1 << 30
SKU = Sku(
    cpu="8",
    memory="32Gi",
    gpus=4,
    most_nodes=5,
    markets=("spot", "on-demand"),
    node_selector={"sku": "h100"},
    spot_node_selector={"spot": "true"},
    tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
    spot_tolerations=({"key": "spot", "value": "yes"},),
)
CLUSTER = Cluster(name="a", sku={"h100": SKU}, image="i", head_node_selector={"head": "true"})


def node(name: str = "n", labels: dict[str, str] | None = None, *, ready: str = "True", **spec: Any) -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, "labels": labels or {"sku": "h100"}}, "spec": spec, "status": status}


def asks(cpu: str = "1", memory: str = "1Gi", gpus: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": str(gpus)}}, **more}


def pod(*containers: dict[str, Any], on: str | None = "n", phase: str = "Running", **spec: Any) -> dict[str, Any]:
    bound = {"nodeName": on} if on else {}
    return {"metadata": {}, "spec": {"containers": list(containers), **bound, **spec}, "status": {"phase": phase}}


def counted(nodes: list[dict[str, Any]], pods: list[dict[str, Any]] | None = None) -> Capacity:
    return count(CLUSTER, iter(nodes), iter(pods or ()), 7.0)


def free(*pods: dict[str, Any]) -> Shape:
    (group,) = counted([node()], list(pods)).nodes
    return group.free


@pytest.mark.parametrize(
    ("pods", "left"),
    [
        ([], (8000, 32, 4)),
        ([pod(asks())], (7000, 31, 3)),
        ([pod(asks(), phase="Succeeded")], (8000, 32, 4)),
        ([{**pod(asks()), "metadata": {"deletionTimestamp": "now"}}], (7000, 31, 3)),
        ([pod(asks(), asks("500m"))], (6500, 30, 2)),
        ([pod(asks(), initContainers=[asks("3", "2Gi", 0), asks("2", "4Gi", 0)])], (5000, 28, 3)),
        (
            [pod(asks(), initContainers=[asks("1", "1Gi", 0, restartPolicy="Always"), asks("3", "1Gi", 0)])],
            (4000, 30, 3),
        ),
        ([pod(asks(), overhead={"cpu": "250m", "memory": "1Gi"})], (6750, 30, 3)),
        ([pod({"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}})], (6000, 31, 4)),
        ([pod(asks(), on="elsewhere")], (8000, 32, 4)),
        ([pod(asks(), on=None, phase="Pending", tolerations=[{"operator": "Exists"}])], (7000, 31, 3)),
        ([pod(asks(gpus=5), on=None, phase="Pending")], (8000, 32, 4)),
        ([pod(asks(), on=None, phase="Pending", nodeSelector={"sku": "a100"})], (8000, 32, 4)),
    ],
)
def test_pods_hold_what_they_ask_for(pods: list[dict[str, Any]], left: tuple[int, int, int]) -> None:
    found = free(*pods)
    assert (found.cpu, found.memory // GIB, found.gpus) == left


GPU_TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("found", "pools"),
    [
        (node(), ("h100/on-demand",)),
        # Pods for machines that stay keep off it.
        (node(labels={"sku": "h100", "spot": "true"}), ("h100/spot",)),
        (node(labels={"sku": "h100", "head": "true"}), ("h100/on-demand", "head")),
        (node(taints=[GPU_TAINT]), ("h100/on-demand",)),
        (node(taints=[{"key": "spot", "value": "yes", "effect": "NoExecute"}]), None),
        (
            node(
                labels={"sku": "h100", "spot": "true"}, taints=[{"key": "spot", "value": "yes", "effect": "NoExecute"}]
            ),
            ("h100/spot",),
        ),
        (node(taints=[{"key": "spot", "effect": "PreferNoSchedule"}]), ("h100/on-demand",)),
        (node(labels={"sku": "cpu"}), None),
        (node(unschedulable=True), None),
        (node(ready="Unknown"), None),
    ],
)
def test_nodes_that_cannot_be_used_give_nothing(found: dict[str, Any], pools: tuple[str, ...] | None) -> None:
    groups = counted([found]).nodes
    assert [group.pools for group in groups] == ([] if pools is None else [pools])


def test_equal_nodes_are_counted_together() -> None:
    capacity = counted([node(f"n{number}") for number in range(3)], [pod(asks(), on="n1")])
    assert [(group.free.gpus, group.count) for group in capacity.nodes] == [(3, 1), (4, 2)]
    assert capacity.can_add == {"h100/spot": 5, "h100/on-demand": 2}
    assert counted([node()], [pod(asks(), on=None, phase="Pending")]).pending_gpus == 1
