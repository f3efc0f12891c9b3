"""SLURM as a backend: a batch job for each submission."""

from __future__ import annotations

import math
import os
import sys
import time

from forebay.errors import InvalidOption
from forebay.fleet.client.submission import LONGEST_TEXT, SLURM, VARIABLE, JobFiles, Standing, Submission
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.slurm.commands import WAITING, QueuedJob, ask, cluster_name, earlier_jobs, jobs_named, tell
from forebay.fleet.slurm.script import batch_script, options_of
from forebay.fleet.spec.fields import fault
from forebay.runtime.formatting import printable
from forebay.runtime.uris import has_local_name
from forebay.storage.credentials import redact

ASK_EVERY_S = 5.0
"""Time for which an answer of squeue is used again: the controller of a large cluster has other work."""


class SlurmBackend:
    """Runs tasks in a batch job of the SLURM cluster of this machine.

    Of the jobs of one name and user, SLURM runs one at a time: a submission that two machines make at once trains once.
    `address` is the cluster's name.
    """

    name = SLURM

    def __init__(self, address: str = "") -> None:
        self.address = address or cluster_name()
        self._asked_at = -math.inf
        self._jobs: tuple[QueuedJob, ...] | None = None

    def start(self, submission: Submission) -> None:
        _require_cluster(submission)
        _require_secrets(submission)
        tell(["sbatch", "--parsable", f"--chdir={submission.folder}"], script_of(submission))
        self._asked_at = -math.inf  # the answer before knew nothing of it

    def is_alive(self, submission: Submission) -> bool | None:
        jobs = self._of(submission)
        return None if jobs is None else any(not each.has_ended for each in jobs)

    def has_ended(self, submission: Submission) -> bool:  # noqa: ARG002 - of the protocol
        """Return false: an operator may requeue a job that has ended, and the lost node's job is requeued later."""
        return False

    def standing(self, submission: Submission) -> Standing:
        jobs = self._of(submission) or ()
        if not jobs:
            jobs = tuple(each for each in earlier_jobs(_name(submission)) if each.comment in ("", submission.id))
        newest = next((each for each in reversed(jobs) if not each.has_ended), jobs[-1] if jobs else None)
        if newest is None:
            return Standing()
        if newest.state in WAITING:
            return Standing(is_waiting=True, why=newest.text)
        if not newest.has_ended:
            return Standing()
        # Somebody cancelled it: its log does not say why.
        line = "" if newest.state.startswith("CANCELLED") else _shown(newest.last_line())
        return Standing(why=": ".join(filter(None, (newest.text, line))))

    def end(self, submission: Submission) -> None:
        for each in self._of(submission) or ():
            if not each.has_ended:
                ask(["scancel", each.job])
        self._asked_at = -math.inf

    def _of(self, submission: Submission) -> tuple[QueuedJob, ...] | None:
        """Jobs of a submission, oldest first. None without an answer of its cluster."""
        now = time.monotonic()
        if now - self._asked_at > ASK_EVERY_S:
            is_here = cluster_name() == submission.address
            self._jobs, self._asked_at = jobs_named(_name(submission)) if is_here else None, now
        return None if self._jobs is None else tuple(each for each in self._jobs if each.comment == submission.id)


def script_of(submission: Submission) -> str:
    """Return the batch script of a submission.

    Sends no request. Raises `InvalidJobSpec` for what SLURM cannot give.
    """
    storage = submission.spec.storage
    options = options_of(submission.spec, name=_name(submission), comment=submission.id)
    return batch_script(
        list(options),
        {**submission.spec.launch.env, VARIABLE: submission.to_json()},
        [sys.executable, "-m", "forebay.fleet.client.runner"],
        python=sys.executable,
        shared=JobFiles(storage=storage, name=submission.spec.name).folder if has_local_name(storage) else "",
    )


def _shown(line: str) -> str:
    return printable(redact(line))[:LONGEST_TEXT]


def _name(submission: Submission) -> str:
    """Name that all submissions of a job share."""
    return PlacedAttempt(spec=submission.spec, task=submission.spec.task[0], number=0, sku="").prefix


def _require_cluster(submission: Submission) -> None:
    if not submission.address:
        tell(["sbatch", "--version"])  # names a missing command
    if (here := cluster_name()) != submission.address or not here:
        raise InvalidOption(
            f"the cluster of this machine is {here or 'unknown: scontrol gives no answer'}, and the job is for "
            f"{submission.address or 'its cluster'}. Submit on a login node of that cluster; `scontrol ping` says "
            "whether its controller answers.",
            address=submission.address,
        )


def _require_secrets(submission: Submission) -> None:
    for name in submission.spec.launch.secret_env:
        if not os.environ.get(name):
            raise fault(
                f"SLURM has no Secrets. Set {name} in the environment in which you submit: sbatch passes it on.",
                *("launch", "secret_env", name),
            )
