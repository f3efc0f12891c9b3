"""Several places for one job, without a control plane: when one is silent, the job is submitted to the next.

The places need no knowledge of each other. Of two processes of the job, the run's own fence lets one keep something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from forebay.fleet.client.backend import JobBackend
from forebay.fleet.client.submit import resubmit
from forebay.fleet.client.submitted_job import SubmittedJob
from forebay.training.runs.result import Result

POLL_S = 1.0
SILENT_S = 30.0


def wait_at_places(
    job: SubmittedJob, places: Sequence[JobBackend], *, silent_s: float = SILENT_S, say: Callable[[str], object] = print
) -> Result | None:
    """Wait for the end of a submitted job, and move it to the next of `places` when its own is silent or lost it.

    The next place starts its process after `silent_s` seconds. Its driver follows the silent one, and takes over after
    `place.unreachable.after`. Returns and raises as `SubmittedJob.wait`.
    """
    turn, silent_since = 0, None
    while True:
        status = job.status()
        if status.is_over and status.state != "lost":
            return job.wait()
        if status.state not in ("unreachable", "lost"):
            silent_since = None
        elif silent_since is None:
            silent_since = time.monotonic()
        if silent_since is not None and (status.state == "lost" or time.monotonic() - silent_since >= silent_s):
            turn, silent_since = turn + 1, None
            place = places[turn % len(places)]
            here, there = f"{status.backend} {status.address}".strip(), f"{place.name} {place.address}".strip()
            say(f"{job.name}: {status.state} at {here}; goes on at {there}")
            resubmit(job, place)
        time.sleep(POLL_S)
