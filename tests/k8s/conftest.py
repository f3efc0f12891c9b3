"""Fixtures on a real control plane, for `make k8s`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.k8s.control_plane import ControlPlane, what_is_missing
from tests.k8s.player import Player, add_nodes, playing

CLUSTERS = ("west", "east")
GPU_NODES = {"west": 1, "east": 3}


@pytest.fixture(scope="session")
def planes() -> Iterator[dict[str, ControlPlane]]:
    """Two clusters, "west" and "east".

    "west" has one GPU node and "east" three, of 4 GPUs each, and both a CPU node.
    """
    if missing := what_is_missing():
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="forebay-k8s-", dir="/dev/shm") as folder:
        found = {name: ControlPlane(name, Path(folder)) for name in CLUSTERS}
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(ControlPlane.start, found.values()))
            for name, plane in found.items():
                api = plane.api()
                add_nodes(api, 1, {"cpu": "8", "memory": "32Gi", "pods": "110"}, {"sku": "cpu"}, prefix="cpu")
                gpus = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "4"}
                add_nodes(api, GPU_NODES[name], gpus, {"sku": "gpu"}, prefix="gpu")
                account = "/api/v1/namespaces/default/serviceaccounts/default"
                plane._await(lambda api=api, account=account: api.get(account), "the default account")
            yield found
        finally:
            for plane in found.values():
                plane.stop()


@pytest.fixture(scope="module")
def players(planes: dict[str, ControlPlane]) -> Iterator[dict[str, Player]]:
    """The kubelet and the operator of each cluster.

    Jobs succeed at once.
    """
    with playing(planes) as found:
        yield found
