"""Statuses of RayJobs as KubeRay writes them."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.fleet.federation.observed import seen_ray_job


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
    assert seen.words.endswith("UnusableStorage: the storage s3://lake� cannot be used from here")


def test_an_exit_code_in_a_log_is_not_that_of_the_entrypoint() -> None:
    message = "Job entrypoint command failed with exit code 1, last available logs:\nmake failed with exit code 78"
    seen = seen_ray_job({"status": {"jobDeploymentStatus": "Failed", "message": message}})
    assert seen.exit_code == 1
    assert seen_ray_job({"status": {"message": "the head is lost\nfailed with exit code 78"}}).exit_code is None
