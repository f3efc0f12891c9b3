"""Reading of a RayJob's status. Checked on KubeRay 1.7.0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from forebay.deploy.lifecycle.decide import Phase, SeenRayJob

_EXIT_CODE = re.compile(r"exit code (\d+)")
_ENDED: Mapping[tuple[str, str], Phase] = {
    # A job that was stopped is complete, too.
    ("Complete", "SUCCEEDED"): "succeeded",
    ("Complete", "STOPPED"): "stopped",
}


def seen_ray_job(job: Mapping[str, Any]) -> SeenRayJob:
    """Phase of a RayJob, its last words and the exit code of its entrypoint.

    `ValidationFailed` is an end as well: the operator looks at the RayJob no more.
    """
    status = job.get("status") or {}
    deployment, run = str(status.get("jobDeploymentStatus") or ""), str(status.get("jobStatus") or "")
    words = str(status.get("message") or status.get("reason") or "")
    found = _EXIT_CODE.search(words)
    return SeenRayJob(phase=_phase(deployment, run), words=words, exit_code=int(found[1]) if found else None)


def _phase(deployment: str, run: str) -> Phase:
    if deployment in ("Complete", "Failed", "ValidationFailed"):
        return _ENDED.get((deployment, run), "failed")
    return "running" if deployment == "Running" and run in ("", "RUNNING", "SUCCEEDED") else "starting"
