"""Objects of tests on a control plane."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from forebay.fleet.kube.api import Object

IMAGE = "registry.example/forebay@sha256:" + "0" * 64


def ray_job(name: str, workers: int = 1, *, deadline_s: int = 300, **annotations: str) -> Object:
    """Return a RayJob with a head and GPU workers.

    The head is on a CPU node, and each worker takes a GPU node.
    """
    group = {
        "groupName": "gpu",
        "replicas": workers,
        "minReplicas": workers,
        "maxReplicas": workers,
        "rayStartParams": {},
        "template": pod(cpu="2", gpus=4),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "annotations": annotations, "labels": {"forebay.dev/job": name}},
        "spec": {
            "entrypoint": "forebay run jobs/train_ctr.py",
            "shutdownAfterJobFinishes": True,
            "preRunningDeadlineSeconds": deadline_s,
            "backoffLimit": 0,
            "rayClusterSpec": {
                "rayVersion": "2.60.0",
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": pod(cpu="1")},
                "workerGroupSpecs": [group],
            },
        },
    }


def ray_cluster(name: str, groups: dict[str, int]) -> Object:
    """Return a RayCluster with an autoscaler.

    Worker groups have so many replicas.
    """
    specs = [
        {
            "groupName": group,
            "replicas": replicas,
            "minReplicas": 0,
            "maxReplicas": 8,
            "rayStartParams": {},
            "template": pod(cpu="1"),
        }
        for group, replicas in groups.items()
    ]
    head = {"rayStartParams": {"num-cpus": "0"}, "template": pod(cpu="1")}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "rayVersion": "2.60.0",
            "enableInTreeAutoscaling": True,
            "headGroupSpec": head,
            "workerGroupSpecs": specs,
        },
    }


def pod(cpu: str, gpus: int = 0) -> Object:
    resources = {"cpu": cpu, "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    container = {"name": "ray", "image": IMAGE, "resources": {"requests": resources, "limits": resources}}
    return {"spec": {"nodeSelector": {"sku": "gpu"} if gpus else {}, "containers": [container]}}


def wait_for(done: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while True:
        if found := done():
            return found
        assert time.monotonic() < end, "not within the time"
        time.sleep(0.1)
