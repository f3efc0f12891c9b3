"""Backends of a submission: this machine, Ray, SLURM, a fleet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from forebay.errors import InvalidOption
from forebay.fleet.client.submission import FLEET, SLURM, VARIABLE, JobFiles, Standing, Submission, SubmissionEnd


class JobBackend(Protocol):
    """Runs the tasks of submissions.

    Laws:
    - `start` is harmless when repeated: a submission of one id runs once.
    - `is_alive` is None if the backend does not answer within 10 s, which says nothing about the submission.
    """

    name: str
    address: str

    def start(self, submission: Submission) -> None:
        """Start the process that runs the tasks.

        Raises `InvalidOption` if the backend cannot be reached.
        """

    def is_alive(self, submission: Submission) -> bool | None:
        """Whether the process runs or is about to start.

        None if that cannot be known now.
        """

    def has_ended(self, submission: Submission) -> bool:
        """Whether the newest answer of `is_alive` was a recorded end, which stays.

        False where the backend does not know the submission, or its queue may start it again.
        """

    def standing(self, submission: Submission) -> Standing:
        """Return what the backend's queue says.

        Empty for a backend without a queue.
        """

    def end(self, submission: Submission) -> None:
        """End the process without a checkpoint."""


class LocalBackend:
    """Runs tasks on this machine, with the local driver.

    The process outlives this one.
    """

    name = "local"
    address = ""

    def start(self, submission: Submission) -> None:
        environment = {**os.environ, VARIABLE: submission.to_json()}
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "forebay.fleet.client.runner"],
                env=environment,
                cwd=submission.folder or Path.cwd(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            why = f"its process could not be started on this machine ({error})"
            _files(submission).end(submission.number, SubmissionEnd(how="failed", why=why))
            raise InvalidOption(
                f"job {submission.spec.name!r}: {why}. Free some of its memory or processes, and submit again."
            ) from error
        _files(submission).launch(submission.number, process.pid)

    def is_alive(self, submission: Submission) -> bool | None:
        started = _files(submission).launched(submission.number)
        is_dead = None if started is None else started.is_dead()
        # A suspended process answers nothing, and may go on.
        return None if is_dead is None or (started is not None and started.is_suspended()) else not is_dead

    def has_ended(self, submission: Submission) -> bool:  # noqa: ARG002 - of the protocol
        """Return true: only this machine says that a process of it is lost."""
        return True

    def standing(self, submission: Submission) -> Standing:  # noqa: ARG002 - of the protocol
        return Standing()

    def end(self, submission: Submission) -> None:
        started = _files(submission).launched(submission.number)
        if started is not None and started.is_dead() is False:
            os.killpg(started.pid, signal.SIGKILL)  # a SIGTERM would ask for a checkpoint


class FleetBackend:
    """Leaves tasks to the controller of a fleet.

    It finds the submission in its storage. Only the controller ends it, in storage.
    """

    name = FLEET
    address = ""

    def start(self, submission: Submission) -> None:
        """Do nothing: `forebay fleet controller` reads the submissions."""

    def is_alive(self, submission: Submission) -> bool | None:  # noqa: ARG002 - of the protocol
        """Return true: a job waits or runs until it ends."""
        return True

    def has_ended(self, submission: Submission) -> bool:  # noqa: ARG002 - of the protocol
        """Return false: the controller records each end."""
        return False

    def standing(self, submission: Submission) -> Standing:  # noqa: ARG002 - of the protocol
        return Standing()

    def end(self, submission: Submission) -> None:
        """Refuse. Raises `InvalidOption`: pods of a fleet are the controller's."""
        raise InvalidOption(
            f"job {submission.spec.name!r} runs in a fleet, and this process cannot end its pods. Call stop() without "
            "now=True: its controller deletes the pods when the run has not ended by itself after 2 minutes.",
            name=submission.spec.name,
        )


def backend_of(name: str, address: str = "", is_own: bool = True) -> JobBackend:
    """Backend called `name`. Raises `InvalidOption` if there is none.

    `is_own`: whether this user gave `address`, and not a file that others may write.
    """
    if name == "local":
        return LocalBackend()
    if name == FLEET:
        return FleetBackend()
    if name == "ray":
        from forebay.fleet.client.ray_backend import RayBackend  # noqa: PLC0415 - Ray takes a second to import

        return RayBackend(address, is_own)
    if name == SLURM:
        from forebay.fleet.client.slurm_backend import SlurmBackend  # noqa: PLC0415 - where it is used

        return SlurmBackend(address)
    raise InvalidOption(f"backend={name!r} is unknown. Choose 'local', 'ray', 'slurm' or 'fleet'.", backend=name)


def _files(submission: Submission) -> JobFiles:
    return JobFiles(storage=submission.spec.storage, name=submission.spec.name)
