"""Capacity on a real API server, and placements.

The real scheduler's are the reference.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.objects import IMAGE, ray_job, wait_for
from tests.k8s.player import Player

from forebay.fleet.capacity_agent import CAPACITY, CapacityAgent
from forebay.fleet.cluster import Cluster, Sku
from forebay.fleet.kube.kuberay import KubeRay
from forebay.fleet.placement.capacity import Capacity, Shape

pytestmark = pytest.mark.k8s

GIB = 2**30
CLUSTER = Cluster(
    name="east",
    namespace="default",
    image=IMAGE,
    sku={"gpu": Sku(cpu="16", memory="64Gi", gpus=4, most_nodes=5, node_selector={"sku": "gpu"})},
    head_node_selector={"sku": "cpu"},
)
WORKER = Shape(cpu=2000, memory=GIB, gpus=4)


@pytest.fixture
def agent(planes: dict[str, ControlPlane]) -> Iterator[CapacityAgent]:
    """A quick agent of the cluster "east".

    It writes at most every 0.2 s.
    """
    api = planes["east"].api()
    published_at = f"/api/v1/namespaces/default/configmaps/{CAPACITY}"
    api.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": CAPACITY}})
    found, ended = CapacityAgent(api, CLUSTER, least_s=0.2, most_s=1.0, watch_s=1), threading.Event()
    thread = threading.Thread(target=found.run, args=(ended,))
    thread.start()
    yield found
    ended.set()
    thread.join(5)
    for mirror in (found._nodes, found._pods):
        mirror.join(5)
    api.delete(published_at)
    # The server deletes in the background, and refuses another object of that name until then.
    wait_for(lambda: not api.exists(published_at))


def published(plane: ControlPlane) -> tuple[Capacity, int] | None:
    data = plane.api().get(f"/api/v1/namespaces/default/configmaps/{CAPACITY}").get("data")
    return data and (Capacity.from_json(data["capacity.json"], observed_at=0.0), int(data["beat"]))


def test_agent_publishes_what_a_job_leaves(
    planes: dict[str, ControlPlane], players: dict[str, Player], agent: CapacityAgent
) -> None:
    plane, player = planes["east"], players["east"]
    _, beat = wait_for(lambda: published(plane))
    wait_for(lambda: published(plane)[0].free_slots("gpu/on-demand", WORKER) == 3)
    capacity, _ = published(plane)
    assert capacity.can_add == {"gpu/on-demand": 2}
    kuberay, holds = KubeRay(plane.api(), "default"), player.run_job
    player.run_job = lambda _: "RUNNING"
    try:
        kuberay.create_job(ray_job("holds", workers=2))
        wait_for(lambda: published(plane)[0].free_slots("gpu/on-demand", WORKER) == 1)
    finally:
        player.run_job = holds
    kuberay.delete_job("holds")
    wait_for(lambda: published(plane)[0].free_slots("gpu/on-demand", WORKER) == 3)
    assert published(plane)[1] > beat
    # The beat goes on where nothing changes.
    last = published(plane)[1]
    wait_for(lambda: published(plane)[1] > last)


def test_figures_of_a_frozen_server_are_not_renewed(
    planes: dict[str, ControlPlane], players: dict[str, Player], agent: CapacityAgent
) -> None:
    plane = planes["east"]
    wait_for(lambda: published(plane))
    assert agent.status.ready.is_fresh
    plane.freeze()
    try:
        # No figures, and no thread that hangs: a probe must not restart an agent whose server is away.
        wait_for(lambda: not agent.status.ready.is_fresh)
        assert agent.status.hung() == []
    finally:
        plane.thaw()
    last = published(plane)[1]
    wait_for(lambda: published(plane)[1] > last)
    wait_for(lambda: agent.status.ready.is_fresh)
    assert json.loads(replace(agent.capacity(), observed_at=0.0).to_json())["cluster"] == "east"
