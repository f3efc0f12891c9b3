"""Submission of a job, idempotent by its name."""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import socket
from dataclasses import replace
from pathlib import Path

from forebay.errors import InvalidJobSpec, InvalidOption, UnderWay
from forebay.fleet.client.backend import JobBackend, backend_of
from forebay.fleet.client.submission import FLEET, SLURM, JobFiles, Submission
from forebay.fleet.client.submitted_job import JobState, SubmittedJob
from forebay.fleet.code import pack, store_code
from forebay.fleet.spec.canonical import key_of, require_same
from forebay.fleet.spec.job_spec import JobSpec
from forebay.fleet.spec.job_toml import load_job_spec
from forebay.fleet.spec.program import check_program
from forebay.storage.atomic import write_failed
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import resolve
from forebay.training.runs.attempts.start import newest_attempt
from forebay.training.runs.attempts.stored_request import forget_request

log = logging.getLogger(__name__)

LONGEST_VARIABLE = 100_000
"""Bytes of a submission. Linux allows a variable 131,072, and Ray writes its quotes twice."""


def submit(
    spec: JobSpec | str | os.PathLike[str],
    backend: str = "local",
    *,
    address: str = "",
    folder: str | os.PathLike[str] | None = None,
    replace_spec: bool = False,
) -> SubmittedJob:
    """Start a job on a backend, or find it.

    Args:
        spec: The job, or the path of its TOML file.
        backend: `"local"` (a process of this machine) or `"ray"` (job submission of a Ray cluster).
        address: Dashboard of the Ray cluster, such as `http://head:8265`.
        folder: Folder with the code. By default the TOML file's, or the working directory.
        replace_spec: Accept another specification under the same name, once the job has ended.

    A second submission of the same name and specification starts nothing while the first runs or has succeeded. One
    that has failed, was stopped or lost starts again, and continues from its newest checkpoint. So does one with
    another specification, and one at another address that does not answer: its run trains once
    (`scheduling.unreachable`).

    Raises:
        InvalidJobSpec: The specification or its program cannot work.
        SpecChanged: A job of this name exists with another specification.
        UnderWay: `replace_spec`, while the job runs with another specification.
        NoExclusiveCreation: The storage cannot decide between two submissions.
        WriteFailed: The storage refuses.
    """
    if not isinstance(spec, JobSpec):
        folder = Path(spec).absolute().parent if folder is None else folder
        spec = load_job_spec(Path(spec))
    root = str(Path(folder or ".").absolute())
    if not Path(root).is_dir():
        raise InvalidOption(f"{root} is not a folder. Give the folder with the code of the job.", folder=root)
    spec = _absolute(spec)
    chosen = backend_of(backend, address)
    files = JobFiles(storage=spec.storage, name=spec.name)
    job = SubmittedJob(spec.storage, spec.name, chosen)
    try:
        earlier = files.newest()
        if earlier is not None and not replace_spec and not _never_ran(files, earlier):
            require_same(earlier.spec, spec)
        if earlier is not None and not _needs_start(state := job.status().state, job, chosen, spec):
            if state == "unreachable" and files.started(earlier.number) is None:
                chosen.start(earlier)  # the backend may not have answered before
            return job
        for task in spec.task:
            check_program(spec, task, root)
        submission = _next(spec, chosen, root, earlier)
        _require_size(submission)
        _warn_of_limit(submission)
        if earlier is not None:
            for task in spec.task:
                forget_request(spec.storage, spec.run_name(task))  # it was made to the submission before
        _start(files, chosen, submission)
    except OSError as error:
        raise write_failed(f"the job {spec.name!r}", files.folder, error) from redacted(error)
    return job


def _never_ran(files: JobFiles, earlier: Submission) -> bool:
    """Whether a submission was refused, and none before it ran."""
    ended = files.ended(earlier.number)
    return ended is not None and ended.how == "refused" and not earlier.after


def _needs_start(state: JobState, job: SubmittedJob, backend: JobBackend, spec: JobSpec) -> bool:
    """Whether the job has to be started again.

    Its newest submission ended without success or with another specification, never began, or is on another, silent
    backend. Raises `UnderWay` for another specification of a job that may run.
    """
    earlier = job.submission
    is_elsewhere = (earlier.backend, earlier.address) != (backend.name, backend.address)
    if state in ("failed", "stopped", "lost", "refused") or (state == "unreachable" and is_elsewhere):
        return True
    if key_of(earlier.spec) == key_of(spec):
        return False
    live = job.live_attempt if state == "fenced" else None
    if state not in ("succeeded", "fenced") or live is not None:
        where = f": {live.title} trains it" if live is not None else ""
        raise UnderWay(
            f"the job {spec.name!r} is {state}{where}. Its specification cannot be replaced now, and nothing was "
            f"changed. Stop it (`forebay stop {spec.name}`), wait for its end, and submit it with --replace again.",
            name=spec.name,
            state=state,
        )
    return True


def _next(spec: JobSpec, backend: JobBackend, root: str, earlier: Submission | None) -> Submission:
    code = None
    if backend.name != "local":
        archive = pack(root, spec.storage)
        store_code(spec.storage, archive)
        code = archive.digest
    return Submission(
        spec=spec,
        number=1 if earlier is None else earlier.number + 1,
        backend=backend.name,
        address=backend.address,
        token=secrets.token_hex(8),
        folder=root,
        code=code,
        after={} if earlier is None else _attempts(spec),
        says=says(),
    )


def _require_size(submission: Submission) -> None:
    """Raise `InvalidJobSpec` for a specification that fits into no variable of a process."""
    if submission.backend != FLEET and (size := len(submission.to_json())) > LONGEST_VARIABLE:
        raise InvalidJobSpec(
            f"the job {submission.spec.name!r} has {size:,} bytes, and the process that runs its tasks can be given "
            f"{LONGEST_VARIABLE:,}. Put long lists of args into a file that the job reads, or make several jobs of its "
            "tasks."
        )


def _warn_of_limit(submission: Submission) -> None:
    if submission.backend != FLEET and submission.spec.scheduling.finish_within is not None:
        instead = "Give launch.slurm.time." if submission.backend == SLURM else "Stop it with `forebay stop`."
        log.warning(
            "scheduling.finish_within holds in a fleet: nothing ends job %r here. %s", submission.spec.name, instead
        )


def says() -> str:
    """Return the user and machine of this process.

    A submission says it of itself: it proves nothing.
    """
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a uid without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _attempts(spec: JobSpec) -> dict[str, int]:
    """Return the newest attempt of each run.

    Raises `OSError` if storage does not answer.
    """
    names = [spec.run_name(task) for task in spec.task]
    return {name: claim.number for name in names if (claim := newest_attempt(spec.storage, name)) is not None}


def _start(files: JobFiles, backend: JobBackend, submission: Submission) -> None:
    if files.create(submission):
        backend.start(submission)


def _absolute(spec: JobSpec) -> JobSpec:
    """Return the spec with an absolute storage URI.

    Raises `InvalidOption` for credentials in it.
    """
    uri = resolve(spec.storage).uri
    if not uri:
        raise InvalidOption(f"storage={spec.storage!r} names no location. Give a folder or a URI.")
    return replace(spec, storage=uri) if "://" not in spec.storage else spec
