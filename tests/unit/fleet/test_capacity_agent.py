"""Rows of the capacity agent: enough to count."""

from __future__ import annotations

import json

from forebay.fleet.capacity_agent import trimmed
from forebay.fleet.cluster import Cluster, Sku
from forebay.fleet.placement.counting import count

GIB = 2**30
CLUSTER = Cluster(
    name="west",
    image="registry.example/forebay@sha256:" + "0" * 64,
    sku={"gpu": Sku(cpu="16", memory="64Gi", gpus=4, most_nodes=3, node_selector={"sku": "gpu"})},
)
NODE = {
    "metadata": {"name": "gpu-0", "labels": {"sku": "gpu"}, "annotations": {"a": "x" * 1000}, "managedFields": ["..."]},
    "spec": {"podCIDR": "10.0.0.0/24"},
    "status": {
        "allocatable": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4"},
        "conditions": [{"type": "Ready", "status": "True", "message": "y" * 100}],
        "images": [{"names": ["z" * 200]}],
    },
}
POD = {
    "metadata": {"name": "p", "namespace": "ml", "uid": "1", "managedFields": ["..."]},
    "spec": {
        "nodeName": "gpu-0",
        "containers": [
            {
                "name": "ray",
                "image": "i" * 100,
                "env": [{"name": "SECRET", "value": "sesame"}],
                "resources": {"requests": {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "1"}},
            }
        ],
        "initContainers": [{"name": "kinit", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
}


def test_trimmed_objects_count_as_whole_ones() -> None:
    whole = count(CLUSTER, [NODE], [POD], now=0)
    assert count(CLUSTER, [trimmed(NODE)], [trimmed(POD)], now=0) == whole
    (group,) = whole.nodes
    assert (group.free.cpu, group.free.memory, group.free.gpus) == (13_000, 56 * GIB, 3)


def test_nothing_else_is_kept() -> None:
    kept = json.dumps([trimmed(NODE), trimmed(POD)])
    assert len(kept) < 700
    assert "sesame" not in kept


def test_node_that_is_cordoned_or_tainted_stays_so() -> None:
    for spec in ({"unschedulable": True}, {"taints": [{"key": "a", "effect": "NoSchedule"}]}):
        node = {**NODE, "spec": spec}
        assert count(CLUSTER, [trimmed(node)], [], now=0) == count(CLUSTER, [node], [], now=0)
        assert count(CLUSTER, [trimmed(node)], [], now=0).nodes == ()
