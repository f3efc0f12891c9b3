"""Facts of the job, as `job.json` in the run's folder.

Some of them must be the same in a resumed run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.errors import JobMismatch
from forebay.storage.atomic import ADVICE, write_failed
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import resolve
from forebay.storage.json_file import from_json, read_json_file, to_json, write_json_file
from forebay.training.job.job import Job
from forebay.training.job.job_facts import Fact, job_facts, public_fact

FILE_NAME = "job.json"
VERSION = 1


def check_identity(job: Job, path: str, name: str) -> dict[str, Fact]:
    """Return the facts that a resumed run must share.

    Those of the run `name` in the folder `path`, and of `job`. Raises `JobMismatch` if the run was begun by a job with
    another value of one of `job.identity`.
    """
    identity = {each: public_fact(each, value) for each, value in job.identity.items()}
    earlier = load_identity(path)
    for each, wanted in identity.items():
        if each in earlier and earlier[each] != wanted:
            raise JobMismatch(
                f"the run {name!r} was begun with {each} = {earlier[each]}, and this job has {each} = "
                f"{wanted}. Set {each} back, or give the run a new name.",
                name=name,
                fact=each,
                found=earlier[each],
                wanted=wanted,
            )
    return {**earlier, **identity}


def record_job(job: Job, path: str, name: str) -> None:
    """Write the facts of `job` into a run's folder.

    The folder is `path`, the name of the run `name`. A job without parameters, identity and augment leaves no file.

    Raises `JobMismatch` as `check_identity`, and `WriteFailed` if storage refuses.
    """
    if not job.identity and not job.parameters and job.data.augment is None:
        return
    facts = {"version": VERSION, "identity": check_identity(job, path, name), "parameters": job_facts(job)}
    try:
        write_json_file(path, FILE_NAME, to_json(facts))
    except OSError as error:
        what = f"the facts of run {name!r}"
        raise write_failed(what, resolve(path).uri, error, ADVICE, name=name) from redacted(error)


def load_identity(path: str) -> Mapping[str, Any]:
    """Read the facts that a resumed run must share.

    From the run folder `path`. Empty if none were recorded.
    """
    content = read_json_file(path, FILE_NAME, "run")
    if content is None:
        return {}
    found: Mapping[str, Any] = from_json(
        content, lambda facts: dict(facts["identity"]), version=VERSION, owner="run", file_name=FILE_NAME
    )
    return found
