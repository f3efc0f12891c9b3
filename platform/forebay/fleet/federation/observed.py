"""Reading of a RayJob's status. Checked on KubeRay 1.7.0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from forebay.fleet.lifecycle.decide import Phase, SeenRayJob

_EXIT_CODE = re.compile(r"[^\n]*failed with exit code (\d+)")
"""Begin of Ray's message about an entrypoint that failed. Its other lines are the end of the log (Ray 2.60)."""
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Colors and movements of the cursor."""
LAST_LINES = 5
LONGEST_WORDS = 1000
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
    message = str(status.get("message") or status.get("reason") or "")
    found = _EXIT_CODE.match(message)
    words = last_words(message) if found is None else f"exit code {found[1]}: {last_words(message[found.end() :])}"
    return SeenRayJob(phase=_phase(deployment, run), words=words, exit_code=int(found[1]) if found else None)


def last_words(text: str) -> str:
    r"""Last lines of a text that a cluster or a job wrote, as one line that cannot steer a terminal.

    >>> last_words("step 1\n\x1b[31mUnusableStorage: s3://lake\x1b[0m cannot be used\n")
    'step 1 | UnusableStorage: s3://lake cannot be used'
    """
    lines = [_SEQUENCE.sub("", line).strip() for line in text.splitlines()]
    joined = " | ".join([line for line in lines if line][-LAST_LINES:])
    return "".join(each if each.isprintable() else "�" for each in joined)[-LONGEST_WORDS:]


def _phase(deployment: str, run: str) -> Phase:
    if deployment in ("Complete", "Failed", "ValidationFailed"):
        return _ENDED.get((deployment, run), "failed")
    return "running" if deployment == "Running" and run in ("", "RUNNING", "SUCCEEDED") else "starting"
