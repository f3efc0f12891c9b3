"""A fleet of three clusters, and controllers as processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.fleet.created import CreatedJobs
from tests.k8s.objects import IMAGE, wait_for
from tests.k8s.player import Player, add_nodes, playing

from forebay.fleet.kube.api_errors import ObjectMissing

STORM_NODES = {"west": 1, "east": 2, "south": 3}
"""Nodes of 10 GPUs each: room for 60 workers of one GPU."""


@pytest.fixture(scope="session")
def fleet(planes: dict[str, ControlPlane]) -> Iterator[dict[str, ControlPlane]]:
    """The two clusters of the bench, and a third one.

    Each has one node of pool "small", and nodes with GPUs.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-k8s-", dir="/dev/shm") as folder:
        south = ControlPlane("south", Path(folder))
        try:
            south.start()
            found = {**planes, "south": south}
            for name, plane in found.items():
                api, small = plane.api(), {"cpu": "64", "memory": "256Gi", "pods": "500"}
                add_nodes(api, 1, small, {"pool": "small"}, prefix="small")
                large = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "10"}
                add_nodes(api, STORM_NODES[name], large, {"pool": "storm"}, prefix="storm")
            yield found
        finally:
            south.stop()


@pytest.fixture(scope="module")
def players(fleet: dict[str, ControlPlane]) -> Iterator[dict[str, Player]]:
    """The kubelet and the operator of each cluster."""
    with playing(fleet) as found:
        yield found


@pytest.fixture(scope="module")
def created(fleet: dict[str, ControlPlane]) -> Iterator[dict[str, CreatedJobs]]:
    """RayJobs created in each cluster from now on."""
    found = {name: CreatedJobs(plane) for name, plane in fleet.items()}
    for each in found.values():
        each.start()
    yield found
    for each in found.values():
        each.ended.set()


def kubeconfigs(fleet: dict[str, ControlPlane]) -> str:
    """Value of KUBECONFIG with a context for each cluster."""
    return ":".join(plane.kubeconfig for plane in fleet.values())


def fleet_file(folder: Path, clusters: list[str], namespace: str, more: str = "", pull_secrets: str = "[]") -> str:
    """Write a fleet file, and return its path.

    Its SKUs are "small" and "storm".
    """
    entry = f"""
[[cluster]]
name = "NAME"
context = "NAME"
namespace = "{namespace}"
image = {{repository = "{IMAGE.partition("@")[0]}", digest = "{IMAGE.partition("@")[2]}", pullSecrets = {pull_secrets}}}
head = {{cpu = "100m", memory = "128Mi", nodeSelector = {{pool = "small"}}}}
cache = {{mode = "none"}}
{more}
[cluster.skus.small]
cpu = 64
memory = "256Gi"
nodeSelector = {{pool = "small"}}
[cluster.skus.storm]
cpu = 32
memory = "256Gi"
gpus = 10
nodeSelector = {{pool = "storm"}}
"""
    path = folder / "fleet.toml"
    path.write_text("".join(entry.replace("NAME", name) for name in clusters))
    return str(path)


def make_namespace(fleet: dict[str, ControlPlane], name: str) -> None:
    """Create a ready namespace in each cluster.

    Pods may be made in it then.
    """
    for plane in fleet.values():
        api = plane.api()
        api.create("/api/v1/namespaces", {"metadata": {"name": name}})

        def account(api=api) -> bool:
            try:
                return bool(api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default").get("secrets"))
            except ObjectMissing:
                return False

        wait_for(account)
