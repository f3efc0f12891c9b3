"""Rebuild of a journal from storage and clusters.

It reads submissions and `attempts/`, and the RayJobs of all clusters by label.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forebay.errors import InvalidOption
from forebay.fleet.client.backend import FleetBackend
from forebay.fleet.client.submission import JobFiles, SubmissionEnd, jobs_below
from forebay.fleet.federation.federation import ABSENT, rules_of
from forebay.fleet.federation.kube_clusters import KubeClusters
from forebay.fleet.federation.ports import ClusterPort, ClusterView, StoragePort
from forebay.fleet.federation.run_storage import RunStorage
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.lifecycle.decide import JobObservation, SeenClaim, SeenRayJob, decide
from forebay.fleet.lifecycle.journal import JobJournal, JournalEntry
from forebay.fleet.lifecycle.states import JobFailed, JobQueued, JobState, JobStopped, JobSucceeded, LiveAttempt
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.storage.filesystem import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job, read from its submissions in storage.

    `end` belongs to the newest one, None while it has none. `after` has the newest attempt of each run when that
    submission was made.
    """

    spec: JobSpec
    end: SubmissionEnd | None = None
    after: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRayJob:
    """A labelled RayJob without a stored job."""

    cluster: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """Silent clusters and unknown RayJobs of a rebuild.

    `silent` has the fault of each cluster.
    """

    silent: Mapping[str, str]
    unknown: tuple[UnknownRayJob, ...]


def rebuild_file(
    path: Path, storages: Iterable[str], fleet: Fleet, clusters: ClusterPort | None = None
) -> tuple[list[JournalEntry], RebuildReport]:
    """Write a controller's journal into a new file.

    Returns its entries, and what was found beside them. Raises `InvalidOption` if the file is there, `ReadFailed` and
    `OSError` if a storage does not answer. The file is whole or not there.
    """
    if path.exists():
        raise InvalidOption(f"{path} is there. End its controller and move the file away, or give another --journal.")
    jobs = stored_jobs([files for storage in storages for files in jobs_below(storage)], FleetBackend.name)
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    journal = JobJournal(unfinished)
    try:
        report = rebuild(journal, jobs, clusters or KubeClusters(fleet), RunStorage(), time.time())
        entries = list(journal.entries())
    finally:
        # The last connection that is closed leaves one file.
        journal.close()
    unfinished.rename(path)
    return entries, report


def stored_jobs(found: Iterable[JobFiles], backend: str) -> list[StoredJob]:
    """Return jobs of a backend, by newest submission.

    Raises `OSError` if storage does not answer.
    """
    jobs: list[tuple[int, str, StoredJob]] = []
    for files in found:
        newest = files.newest()
        if newest is None or newest.backend != backend:
            continue
        location = resolve(files.uri(newest.number))
        # Times of one storage among themselves: they give an order, and are compared with no other clock.
        written = location.fs.get_file_info(location.path).mtime_ns or 0
        jobs.append(
            (written, files.name, StoredJob(spec=newest.spec, end=files.ended(newest.number), after=newest.after))
        )
    return [job for _, _, job in sorted(jobs, key=lambda each: each[:2])]


def rebuild(
    journal: JobJournal,
    jobs: Iterable[StoredJob],
    clusters: ClusterPort,
    storage: StoragePort,
    now: float,
) -> RebuildReport:
    """Fill an empty journal with the tasks of `jobs`.

    Changes nothing else: the next round acts. Raises `ReadFailed` if storage does not answer.
    """
    views = clusters.look_all(now)
    prefixes: set[str] = set()
    for job in jobs:
        journal.add(job.spec, now)
        for task in job.spec.task:
            prefixes.add(_attempt(job.spec, task, 0).prefix)
            state, why = _state(job, task, views, storage, now)
            journal.record(job.spec.run_name(task), state, now, why)
    unknown = tuple(
        UnknownRayJob(cluster=cluster, name=name)
        for cluster, view in views.items()
        for name in view.ray_jobs or {}
        if name.rpartition("-")[0] not in prefixes
    )
    silent = {
        name: view.capacity.fault or "it gives no answer" for name, view in views.items() if view.ray_jobs is None
    }
    return RebuildReport(silent=silent, unknown=unknown)


def _state(
    job: StoredJob, task: Task, views: Mapping[str, ClusterView], storage: StoragePort, now: float
) -> tuple[JobState, str]:
    """Return the state of a task.

    It follows from the decisions on its claim and on its RayJob.
    """
    try:
        claim = storage.newest_claim(job.spec, task)
    except InvalidOption as error:
        return JobFailed(number=0, why=str(error)), str(error)
    if job.end is not None:
        return _ended(job.end, claim)
    after = job.after.get(job.spec.run_name(task), 0)
    if claim is not None and claim.number <= after:
        return JobQueued(since=now, number=after), "the journal was made again: it was submitted again"
    failures = 0 if claim is None else storage.failures(job.spec, task, since=after + 1, before=claim.number)
    state: JobState = JobQueued(since=now, failures=failures)
    why = "it was submitted, and has no attempt"
    # The first decision follows the claim, the second one looks at its RayJob.
    for _ in range(2 if claim is not None else 0):
        ray_job, is_refused = _seen(job.spec, task, state, views)
        observed = JobObservation(claim=claim, ray_job=ray_job, is_refused=is_refused)
        decision = decide(state, observed, rules_of(job.spec, task), now)
        state, why = decision.state, decision.why
    return state, f"the journal was made again: {why}"


def _ended(end: SubmissionEnd, claim: SeenClaim | None) -> tuple[JobState, str]:
    number = 0 if claim is None else claim.number
    why = f"the journal was made again: {end.why or f'the submission {end.how}'}"
    is_finished = claim is not None and claim.how == "finished"
    if end.how == "succeeded" or is_finished:
        return JobSucceeded(number=number), why
    if end.how == "stopped":
        return JobStopped(number=number), why
    return JobFailed(number=number, why=end.why or end.how), why


def _seen(
    spec: JobSpec, task: Task, state: JobState, views: Mapping[str, ClusterView]
) -> tuple[SeenRayJob | None, bool]:
    """Return the RayJob of a live attempt.

    The second value says whether the cluster refused us.
    """
    if not isinstance(state, LiveAttempt):
        return None, False
    view = views.get(state.target.cluster)
    if view is None or view.ray_jobs is None:
        return None, view is not None and view.is_refused
    return view.ray_jobs.get(_attempt(spec, task, state.number).name, ABSENT), False


def _attempt(spec: JobSpec, task: Task, number: int) -> PlacedAttempt:
    return PlacedAttempt(spec=spec, task=task, number=number, sku="")
