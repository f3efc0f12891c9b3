"""Shared Ray cluster of a namespace.

Jobs with `cluster = "shared"` use it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from forebay.errors import InvalidOption
from forebay.fleet.cluster import Cluster, Sku
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.rayjob.pod import KubeObject
from forebay.fleet.rayjob.render import ray_cluster_spec
from forebay.fleet.spec.job_spec import JobSpec, Task, TaskWorkers


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNodes(PlacedAttempt):
    """Nodes of no run, without its name and code."""

    def environment_in(self, cluster: Cluster) -> dict[str, str]:  # noqa: ARG002 - of an attempt
        """No variables: each job brings its own."""
        return {}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the cluster and its pods."""
        return {"app.kubernetes.io/managed-by": "forebay"}


def shared_cluster(cluster: Cluster) -> KubeObject:
    """Return the shared RayCluster.

    It has a group for each SKU and market, where a worker is a whole machine, from 0 to the SKU's machines. Raises
    `InvalidOption` for a cluster without a shared one.
    """
    if not cluster.shared_cluster:
        raise InvalidOption(f"cluster {cluster.name} has no shared Ray cluster. Set cluster.enabled in the chart.")
    # Kueue takes no cluster whose number of workers changes.
    plain = replace(cluster, scheduler="default")
    specs = [(name, sku, ray_cluster_spec(_nodes(name, sku), plain)) for name, sku in sorted(cluster.sku.items())]
    groups = [
        {
            **group,
            "groupName": f"{name}-{group['groupName']}",
            "replicas": 0,
            "minReplicas": 0,
            "maxReplicas": max(sku.most_nodes, 1),
        }
        for name, sku, spec in specs
        for group in spec["workerGroupSpecs"]
    ]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": cluster.shared_cluster,
            "namespace": cluster.namespace,
            "labels": {"app.kubernetes.io/managed-by": "forebay"},
        },
        "spec": {**specs[0][2], "workerGroupSpecs": groups},
    }


def _nodes(name: str, sku: Sku) -> SharedNodes:
    is_spot = "spot" in sku.markets
    workers = TaskWorkers(
        min=1, max=2, cpu=sku.cpu, memory=sku.memory, gpus=sku.gpus, spot="prefer" if is_spot else "never"
    )
    task = Task(name="shared", command=("ray",), workers=workers)
    spec = JobSpec(name="shared", storage="file:///work", task=(task,))
    return SharedNodes(spec=spec, task=task, number=0, sku=name, market="spot" if is_spot else "on-demand")
