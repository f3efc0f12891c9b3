"""Facts of a job, without secrets.

Its parameters and numbers, for people and trackers. `job.json` in a run's folder has them too, with those that must be
the same in a resumed run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from forebay.data.transform.augment import as_augment
from forebay.errors import JobMismatch
from forebay.runtime.formatting import without_addresses
from forebay.storage.credentials import redact, without_credentials
from forebay.storage.json_file import Fact, to_json
from forebay.training.job.job import Job
from forebay.training.runs.run_folder import RunFolder

FILE_NAME = "job.json"
VERSION = 1
HIDDEN = "***"
SWEEP_FACT = "sweep.name"
"""Name of the fact that a job is a trial of a sweep."""
_SECRET_NAME = re.compile(
    r"(^|_)(secret|token|passw\w*|passphrase|pwd|credentials?|(access|account|api|private)_?key|key|auth|bearer|jwt)(_|$)",
    re.IGNORECASE,
)


def job_facts(job: Job) -> dict[str, Fact]:
    """Return the job's parameters and numbers by name.

    Its own numbers are `job.<name>`. `job.augment` is the name and the fingerprint of the data's augment, if it has
    one.

    Credentials in URIs are left out, and a parameter whose name says that it is a secret has the value `***`. Values
    other than numbers and texts become JSON.
    """
    own: dict[str, Fact] = {
        "epochs": job.epochs,
        "global_batch": job.data.global_batch,
        "seed": job.seed,
        "checkpoint_every": job.checkpoint_every,
        "reduction": job.reduction,
        "min_workers": job.min_workers,
        "max_workers": job.max_workers,
        "plan": job.data.plan.id,
    }
    if augment := as_augment(job.data.augment):
        own["augment"] = f"{augment.name} {augment.fingerprint}"
    return {
        **{name: public_fact(name, value) for name, value in job.parameters.items()},
        **{f"job.{name}": value for name, value in own.items()},
    }


def public_fact(name: str, value: object) -> Fact:
    """Return a parameter's value as it may be shown.

    >>> public_fact("data", "s3://AKIA:sesame@bucket/chats")
    's3://bucket/chats'
    >>> public_fact("api_key", "sesame")
    '***'
    >>> public_fact("mix", {"a": 0.5})
    '{"a": 0.5}'
    """
    if _SECRET_NAME.search(name) and value is not None:
        return HIDDEN
    public = _without_credentials(value)
    if public is None or isinstance(public, str | int | float):
        return public
    return to_json(public)


def _without_credentials(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_without_credentials(str(name)): _entry(str(name), each) for name, each in value.items()}
    if isinstance(value, set | frozenset):  # in one order in all processes
        return sorted(map(_without_credentials, value), key=str)
    if isinstance(value, list | tuple):
        return [_without_credentials(each) for each in value]
    if isinstance(value, str):
        return redact(without_credentials(value) if "://" in value else value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(without_addresses(str(value)))


def _entry(name: str, value: Any) -> Any:
    return HIDDEN if _SECRET_NAME.search(name) and value is not None else _without_credentials(value)


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


def nothing_to_train(job: Job, folder: RunFolder) -> str:
    """Warning that a run has trained all its epochs before.

    Names the parameters of its last start that differ from the job's: its result is of those.
    """
    changed = [f"{name}={before}" for name, before, _ in _changed_parameters(job, folder)]
    with_others = f", with {', '.join(changed)}" if changed else ""
    return (
        f"Run {folder.name!r} had trained all its epochs before{with_others}. Nothing is trained now, and this is the "
        "result from then. To train again, give another name."
    )


def other_parameters(job: Job, folder: RunFolder) -> str | None:
    """Warning that a run goes on with other parameters than its last start had.

    None if they are the same.
    """
    changed = [f"{name}={now} (before: {before})" for name, before, now in _changed_parameters(job, folder)]
    if not changed:
        return None
    return (
        f"Run {folder.name!r} goes on with {', '.join(changed)}. What its checkpoint holds stays as it was saved, also "
        "the learning rate of the optimizer. To train with the new values from the first step, give another name."
    )


def _changed_parameters(job: Job, folder: RunFolder) -> list[tuple[str, Fact, Fact]]:
    """Names and values, before and now, of parameters that the run's last start had, too."""
    earlier = folder.load(FILE_NAME, lambda facts: dict(facts["parameters"]), VERSION) or {}
    now = json.loads(to_json({name: public_fact(name, value) for name, value in job.parameters.items()}))
    asked = [each for each in now if each in earlier and "." not in each]  # not what a fleet adds: `placed.machine`
    return [(each, earlier[each], now[each]) for each in asked if earlier[each] != now[each]]


def load_identity(run: str | RunFolder) -> Mapping[str, Any]:
    """Read the facts that a resumed run must share.

    Empty if none were recorded.
    """
    return RunFolder.at(run).load(FILE_NAME, _identity, VERSION) or {}


def _identity(facts: dict[str, Any]) -> Mapping[str, Any]:
    if not isinstance(facts["identity"], dict):
        raise TypeError("identity is not a mapping")
    return facts["identity"]
