"""Statuses of RayJobs as KubeRay writes them."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.deploy.federation.observed import seen_ray_job


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
