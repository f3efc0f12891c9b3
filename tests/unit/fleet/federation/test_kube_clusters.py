"""RayJobs as the lifecycle sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.fleet.federation import kube_clusters
from forebay.fleet.federation.kube_clusters import KubeClusters, seen_job
from forebay.fleet.kube.api import KubeApi
from forebay.fleet.kube.api_errors import ApiUnreachable
from forebay.fleet.kube.connection import by_context
from forebay.testing.fleet.made import made_fleet


def test_words_of_the_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    pod = {"metadata": {"name": "p"}, "status": {"conditions": [condition]}}
    assert seen_job({"metadata": {"name": "a"}}, (pod, pod)).words == "0/4 nodes are available"


def test_a_silent_cluster_is_left_alone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes")
    # A port that nothing listens to: each request is refused at once, and repeated twice with a wait before.
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = tmp_path / "config"
    config.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}))
    waits: list[float] = []
    clusters = KubeClusters(
        made_fleet(1), lambda found: KubeApi(by_context("c", str(config)), cluster=found.name, sleep=waits.append)
    )
    (view,) = clusters.look_all(0.0).values()
    assert view.ray_jobs is None and "gave no answer to GET" in (view.capacity.fault or "")
    assert len(waits) == 2
    assert clusters.look_all(1.0)["c00"].capacity.fault == view.capacity.fault
    with pytest.raises(ApiUnreachable):
        clusters.delete("c00", "fb-x-1")
    assert len(waits) == 2
    # Then one request asks whether it is back.
    monkeypatch.setattr(kube_clusters.time, "monotonic", lambda: 1e12)
    assert "/version" in (clusters.look_all(2.0)["c00"].capacity.fault or "")
    assert len(waits) == 2
