"""Ray's job submission as a backend.

The dashboard of a cluster runs the tasks on its head node.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from forebay.errors import InvalidOption
from forebay.fleet.client.submission import VARIABLE, Standing, Submission
from forebay.storage.credentials import redact
from forebay.storage.deadline import call_with_deadline

T = TypeVar("T")
ANSWER_S = 10.0
_LONGEST_WORDS = 500
_OVERRIDES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables by which Ray's client asks another cluster than the given one, without a word."""
_ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)


class RayBackend:
    """Runs tasks through the Ray dashboard at `address`.

    Ray refuses a second submission of one id. An address that is not this user's own is shown no token.
    """

    name = "ray"

    def __init__(self, address: str, is_own: bool = True) -> None:
        if not address.startswith(("http://", "https://")):
            raise InvalidOption(
                f"address={address!r} is not the address of a dashboard. Give --address http://HEAD:8265.",
                address=address,
            )
        self.address = address
        self._why_not = _why_not(address, is_own)
        self._said = ""
        self._has_ended = False

    def start(self, submission: Submission) -> None:
        if self._why_not:
            raise InvalidOption(f"job {submission.spec.name!r} cannot be submitted: {self._why_not}")
        words = ["python", "-m", "forebay.fleet.client.runner"]
        variables = {VARIABLE: submission.to_json()}

        def submit() -> None:
            client = JobSubmissionClient(self.address)
            client.submit_job(
                entrypoint=shlex.join(words), submission_id=_id(submission), runtime_env={"env_vars": variables}
            )

        try:
            call_with_deadline(submit, 6 * ANSWER_S)
        except (RuntimeError, RayError, OSError) as error:
            if self.is_alive(submission) is None:
                raise InvalidOption(
                    f"the Ray cluster at {self.address} does not take the job ({redact(str(error))[:300]}). Check the "
                    "address, and set RAY_AUTH_MODE=token where the cluster asks for one. Submit again: nothing runs "
                    "twice.",
                    address=self.address,
                ) from None

    def is_alive(self, submission: Submission) -> bool | None:
        found = self._ask(lambda client: _found(client, _id(submission)))
        status, message = found or (None, "")
        self._has_ended = status in _ENDED
        self._said = _short(message) if self._has_ended else ""
        return None if found is None else status is not None and not self._has_ended

    def has_ended(self, submission: Submission) -> bool:  # noqa: ARG002 - the newest answer is its own
        return self._has_ended

    def standing(self, submission: Submission) -> Standing:  # noqa: ARG002 - of the protocol
        """Return why the cluster is not asked, or what it said of an ended job."""
        return Standing(why=self._why_not or self._said)

    def end(self, submission: Submission) -> None:
        if self._why_not:
            raise InvalidOption(f"job {submission.spec.name!r} cannot be ended here: {self._why_not}")
        self._ask(lambda client: client.stop_job(_id(submission)))

    def _ask(self, question: Callable[[JobSubmissionClient], T]) -> T | None:
        if self._why_not:
            return None
        try:
            # Requests of Ray's client have no deadline of their own.
            return call_with_deadline(lambda: question(JobSubmissionClient(self.address)), ANSWER_S)
        except (RuntimeError, RayError, OSError):
            return None


def _why_not(address: str, is_own: bool) -> str:
    """Say why the cluster at `address` is not asked. Empty if it is."""
    for variable in _OVERRIDES:
        if given := os.environ.get(variable):
            if urlsplit("//" + given.rpartition("://")[2]).hostname == urlsplit(address).hostname:
                return ""
            return f"{variable}={given} lets Ray's client ask that cluster instead of {address}. Unset {variable}."
    if is_own or os.environ.get("RAY_AUTH_MODE") != "token":
        return ""
    return (
        f"{address} is not asked: Ray's client would show it this user's token, and another user may have written that "
        f"address. If it is yours, set RAY_API_SERVER_ADDRESS={address}."
    )


def _id(submission: Submission) -> str:
    """Return the id that Ray knows a submission by.

    Ray keeps those of ended jobs. A job whose folder was removed begins with submission 1 again, with another token.
    """
    return f"{submission.id}-{submission.token}".rstrip("-")


def _found(client: JobSubmissionClient, job: str) -> tuple[JobStatus | None, str]:
    """Return the status of a job, and what its cluster says of it.

    A cluster that was asked before it was ready has none.
    """
    try:
        details = client.get_job_info(job)
    except RuntimeError as error:
        if "status code 404" in str(error):
            return None, ""
        raise
    return details.status, details.message or ""


def _short(message: str) -> str:
    r"""First and last line of Ray's message, between which is the end of the log.

    >>> _short("Job entrypoint command failed with exit code 1, last available logs (...):\nstep 1\nno room\n")
    'Ray: Job entrypoint command failed with exit code 1: no room'
    """
    first, *rest = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    last = f": {rest[-1]}" if rest else ""
    return redact(f"Ray: {first.partition(', last available logs')[0]}{last}")[:_LONGEST_WORDS] if first else ""
