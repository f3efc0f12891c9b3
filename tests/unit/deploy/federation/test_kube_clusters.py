"""RayJobs as the lifecycle sees them."""

from __future__ import annotations

import pytest

from forebay.deploy.federation.kube_clusters import seen_job


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        (None, "starting"),
        ({"jobDeploymentStatus": "Initializing"}, "starting"),
        ({"jobDeploymentStatus": "Suspended"}, "starting"),
        ({"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}, "running"),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, "succeeded"),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, "stopped"),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "FAILED"}, "failed"),
        ({"jobDeploymentStatus": "Failed", "reason": "PreRunningDeadlineExceeded"}, "failed"),
        ({"jobDeploymentStatus": "ValidationFailed"}, "failed"),
    ],
)
def test_phase(status: dict[str, str] | None, phase: str) -> None:
    assert seen_job({"metadata": {"name": "a"}, "status": status}).phase == phase


def test_exit_code_and_words_of_the_run() -> None:
    status = {
        "jobDeploymentStatus": "Failed",
        "jobStatus": "FAILED",
        "reason": "AppFailed",
        "message": "Job entrypoint command failed with exit code 78, last available logs: ...",
    }
    seen = seen_job({"metadata": {"name": "a"}, "status": status})
    assert seen.exit_code == 78
    assert seen.words.startswith("AppFailed: Job entrypoint")


def test_words_of_the_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    pod = {"metadata": {"name": "p"}, "status": {"conditions": [condition]}}
    assert seen_job({"metadata": {"name": "a"}}, (pod, pod)).words == "0/4 nodes are available"
