"""Ray's job submission as a backend.

The dashboard of a cluster runs the tasks on its head node.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TypeVar

from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from forebay.errors import InvalidOption
from forebay.fleet.client.submission import VARIABLE, Standing, Submission
from forebay.storage.credentials import redact
from forebay.storage.deadline import call_with_deadline

T = TypeVar("T")
ANSWER_S = 10.0
_ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)


class RayBackend:
    """Runs tasks through the Ray dashboard at `address`.

    Ray refuses a second submission of one id.
    """

    name = "ray"

    def __init__(self, address: str) -> None:
        if not address.startswith(("http://", "https://")):
            raise InvalidOption(
                f"address={address!r} is not the address of a dashboard. Give --address http://HEAD:8265.",
                address=address,
            )
        self.address = address

    def start(self, submission: Submission) -> None:
        words = ["python", "-m", "forebay.fleet.client.runner"]
        variables = {VARIABLE: submission.to_json()}

        def submit() -> None:
            client = JobSubmissionClient(self.address)
            client.submit_job(
                entrypoint=shlex.join(words), submission_id=submission.id, runtime_env={"env_vars": variables}
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
        return self._ask(lambda client: _is_there(client, submission.id))

    def standing(self, submission: Submission) -> Standing:  # noqa: ARG002 - of the protocol
        return Standing()

    def end(self, submission: Submission) -> None:
        self._ask(lambda client: client.stop_job(submission.id))

    def _ask(self, question: Callable[[JobSubmissionClient], T]) -> T | None:
        try:
            # Requests of Ray's client have no deadline of their own.
            return call_with_deadline(lambda: question(JobSubmissionClient(self.address)), ANSWER_S)
        except (RuntimeError, RayError, OSError):
            return None


def _is_there(client: JobSubmissionClient, job: str) -> bool:
    """Whether the cluster has a job that still runs.

    A cluster that was asked before it was ready has none.
    """
    try:
        return client.get_job_status(job) not in _ENDED
    except RuntimeError as error:
        if "status code 404" in str(error):
            return False
        raise
