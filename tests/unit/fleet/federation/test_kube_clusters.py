"""RayJobs as the lifecycle sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fleet_simulation.made import made_fleet

from forebay.fleet.federation import kube_clusters
from forebay.fleet.federation.kube_clusters import KubeClusters, seen_job, seen_ray_job
from forebay.fleet.kube.api import KubeApi
from forebay.fleet.kube.api_errors import ApiUnreachable
from forebay.fleet.kube.connection import by_context
from forebay.fleet.placement.capacity import Capacity, NodeGroup, Shape


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


class OneRunningJob:
    """API server of a cluster with one RayJob that runs, and figures of an agent."""

    def __init__(self, figures: dict[str, str]) -> None:
        self.figures = figures

    def items(self, path: str, **_: object) -> list[dict[str, Any]]:
        job = {"metadata": {"name": "fb-x-1"}, "status": {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}}
        return [job] if path.endswith("/rayjobs") else []

    def exists(self, _: str) -> bool:
        return False

    def get(self, _: str) -> dict[str, Any]:
        return {"data": self.figures}


GOOD = Capacity(cluster="here", observed_at=0.0, nodes=(NodeGroup(Shape(1, 2, 3), ("h100/spot",)),)).to_json()


@pytest.mark.parametrize(
    "figures",
    [
        {"beat": "1", "capacity.json": GOOD.replace('"version": 1', '"version": 2')},
        {"beat": "1", "capacity.json": GOOD.replace('"cpu": 1', '"cpu": "1"')},
        {"beat": "1", "capacity.json": GOOD.replace('"can_add": {}', '"can_add": ["h100/spot"]')},
        {"beat": "1", "capacity.json": "[" * 5000},
        {"beat": "one", "capacity.json": GOOD},
    ],
)
def test_jobs_of_a_cluster_whose_figures_cannot_be_read_are_followed(figures: dict[str, str]) -> None:
    """They run: their cluster is not silent, as it would be while its agent has another version."""
    api: Any = OneRunningJob(figures)
    (view,) = KubeClusters(made_fleet(1), lambda _: api).look_all(0.0).values()
    assert view.capacity.fault is not None
    assert view.ray_jobs is not None and view.ray_jobs["fb-x-1"].phase == "running"
    api.figures = {"beat": "2", "capacity.json": GOOD}
    assert KubeClusters(made_fleet(1), lambda _: api).look_all(0.0)["c00"].capacity.fault is None


@pytest.mark.parametrize(
    ("status", "phase", "exit_code"),
    [
        (None, "starting", None),
        ({"jobDeploymentStatus": "Initializing"}, "starting", None),
        ({"jobDeploymentStatus": "Suspended"}, "starting", None),
        ({"jobDeploymentStatus": "Waiting"}, "starting", None),
        ({"jobDeploymentStatus": "Running", "jobStatus": "PENDING"}, "starting", None),
        ({"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}, "running", None),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, "succeeded", None),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, "stopped", None),
        (
            {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": "failed with exit code 78, logs"},
            "failed",
            78,
        ),
        ({"jobDeploymentStatus": "Failed", "reason": "JobStatusCheckTimeoutExceeded"}, "failed", None),
        ({"jobDeploymentStatus": "ValidationFailed", "message": "too long"}, "failed", None),
    ],
)
def test_a_status_has_its_phase(status: dict[str, Any] | None, phase: str, exit_code: int | None) -> None:
    seen = seen_ray_job({} if status is None else {"status": status})
    assert (seen.phase, seen.exit_code) == (phase, exit_code)


def test_the_words_of_a_driver_are_the_end_of_its_log() -> None:
    logs = "\n".join(f"step {number}" for number in range(900))
    message = (
        "Job entrypoint command failed with exit code 78, last available logs (truncated to 20,000 chars):\n"
        f"{logs}\n\x1b[31mUnusableStorage: the storage s3://lake\x1b[0m\x07 cannot be used from here\n"
    )
    seen = seen_ray_job({"status": {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": message}})
    assert seen.exit_code == 78
    assert seen.words.startswith("exit code 78: step 896 | ")
    assert seen.words.endswith("UnusableStorage: the storage s3://lake\\x07 cannot be used from here")


def test_an_exit_code_in_a_log_is_not_that_of_the_entrypoint() -> None:
    message = "Job entrypoint command failed with exit code 1, last available logs:\nmake failed with exit code 78"
    seen = seen_ray_job({"status": {"jobDeploymentStatus": "Failed", "message": message}})
    assert seen.exit_code == 1
    assert seen_ray_job({"status": {"message": "the head is lost\nfailed with exit code 78"}}).exit_code is None
