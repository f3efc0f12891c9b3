"""Facts of the job, as `job.json` in the run's folder.

Some of them must be the same in a resumed run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.errors import JobMismatch
from forebay.storage.json_file import Fact, to_json
from forebay.training.job.job import Job
from forebay.training.job.job_facts import job_facts, public_fact
from forebay.training.runs.run_folder import RunFolder

FILE_NAME = "job.json"
VERSION = 1


def check_identity(job: Job, folder: RunFolder) -> dict[str, Fact]:
    """Return the facts that a resumed run must share.

    Of the run in `folder`, and of `job`. Raises `JobMismatch` if the run was begun by a job with
    another value of one of `job.identity`.
    """
    identity = {each: public_fact(each, value) for each, value in job.identity.items()}
    earlier = load_identity(folder)
    for each, wanted in identity.items():
        if each in earlier and earlier[each] != wanted:
            raise JobMismatch(
                f"the run {folder.name!r} was begun with {each} = {earlier[each]}, and this job has {each} = "
                f"{wanted}. Set {each} back, or give the run a new name.",
                name=folder.name,
                fact=each,
                found=earlier[each],
                wanted=wanted,
            )
    return {**earlier, **identity}


def record_job(job: Job, folder: RunFolder) -> None:
    """Write the facts of `job` into a run's folder.

    A job without parameters, identity and augment leaves no file.

    Raises `JobMismatch` as `check_identity`, and `WriteFailed` if storage refuses.
    """
    if not job.identity and not job.parameters and job.data.augment is None:
        return
    facts = {"version": VERSION, "identity": check_identity(job, folder), "parameters": job_facts(job)}
    folder.save(FILE_NAME, to_json(facts), f"the facts of run {folder.name!r}")


def load_identity(run: str | RunFolder) -> Mapping[str, Any]:
    """Read the facts that a resumed run must share.

    Empty if none were recorded.
    """
    return RunFolder.at(run).load(FILE_NAME, _identity, VERSION) or {}


def _identity(facts: dict[str, Any]) -> Mapping[str, Any]:
    if not isinstance(facts["identity"], dict):
        raise TypeError("identity is not a mapping")
    return facts["identity"]
