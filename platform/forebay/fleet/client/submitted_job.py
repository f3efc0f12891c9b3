"""A submitted job: state, logs, result and requests."""

from __future__ import annotations

import html
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from forebay.errors import InvalidOption, RunFailed
from forebay.events import Request
from forebay.fleet.client.backend import JobBackend, backend_of
from forebay.fleet.client.preparing import preparing_text
from forebay.fleet.client.submission import FLEET, SLURM, JobFiles, Submission, SubmissionEnd, folders_below
from forebay.fleet.spec.job_spec import ordered
from forebay.runtime.formatting import did_you_mean
from forebay.storage.atomic import without_room
from forebay.storage.filesystem import resolve
from forebay.storage.json_file import Fact
from forebay.training.checkpoint.files.claim import Claim
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.attempts.stored_request import send_request
from forebay.training.runs.result import Result, load_result
from forebay.training.runs.run_folder import RunFolder
from forebay.training.runs.status import validate_target
from forebay.training.runs.timeline.cost import UNKNOWN, RunCost, cost_of, total_cost
from forebay.training.runs.timeline.timeline import Timeline, load_timeline

POLL_S = 0.5
STARTS_WITHIN_S = 60.0
"""Time until the process of a local job is recorded. It takes milliseconds, unless `forebay submit` was killed."""
FORGOTTEN_S = 3600.0
"""Silence of a job that its backend does not know. Heartbeats come every few seconds, a requeue within minutes."""

JobState = Literal[
    "starting", "preparing", "running", "unreachable", "lost", "succeeded", "failed", "stopped", "fenced", "refused"
]
OVER = ("succeeded", "failed", "stopped", "fenced", "refused", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """State of a job at one moment.

    Epochs count from 0. preparing: the job function prepares data before training, and `why` says what. unreachable:
    the backend does not answer, which says nothing about the job. lost: its process left no record. refused: its
    submitter may not have what it asks for, and `why` says what.
    `submitter` is the one that a controller found, or what the submission says of itself. `cluster` is the place of the
    newest attempt in a fleet: cluster, SKU, market and workers. `code` is the exit code of the process that failed, if
    known.
    """

    name: str
    state: JobState
    backend: str
    address: str
    submission: int
    attempt: int = 0
    host: str = ""
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    workers: int = 0
    why: str = ""
    submitter: str = ""
    cluster: str = ""
    code: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of this submission runs any more."""
        return self.state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """Line of a job's log.

    `part` is its submission, or in a fleet its task and attempt.
    """

    part: str
    line: str


class SubmittedJob:
    """Handle of a submitted job.

    It holds no connection: any process may make one, from the storage and the name.
    """

    def __init__(self, storage: str, name: str, backend: JobBackend | None = None) -> None:
        self._files = JobFiles(storage=storage, name=name)
        self._backend = backend

    @property
    def name(self) -> str:
        return self._files.name

    @property
    def path(self) -> str:
        """Folder of the job in its storage."""
        return self._files.folder

    @property
    def submission(self) -> Submission:
        """Newest submission. Raises `InvalidOption` if there is none."""
        newest = self._files.newest()
        if newest is None:
            hint = did_you_mean(self.name, folders_below(self._files.storage))
            raise InvalidOption(
                f"no job {self.name!r} was submitted with the storage {resolve(self._files.storage).uri}.{hint} Check "
                "the name and the storage: `forebay jobs --storage URI` lists them.",
                name=self.name,
            )
        return newest

    def status(self) -> JobStatus:
        """Return the state of the newest submission.

        Asks the backend only if storage does not know the end.
        """
        submission = self.submission
        ended = self._files.ended(submission.number)
        state: JobState = ended.how if ended is not None else self._live_state(submission)
        why = "" if ended is None else ended.why
        if state == "running" and (prepares := self._preparing(submission)) is not None:
            state, why = "preparing", prepares
        explained = ("running", "starting", "lost", *(["unreachable"] if submission.backend == "ray" else []))
        if ended is None and state in explained:
            standing = self._backend_of(submission).standing(submission)
            state, why = "starting" if standing.is_waiting else state, standing.why
        if ended is None and state == "lost":  # it may have been unable to say why
            why = "; ".join(filter(None, (why, without_room(self._files.storage))))
        run = AttemptFiles(self._run)
        claim = run.newest()
        heartbeat = None if claim is None else run.heartbeat(claim.number)
        # A heartbeat comes every few seconds: a short run ends before its second one.
        result = None if ended is None else load_result(self._run)
        if result is not None and state == "succeeded":
            why = why or result.stopped or ""
        return JobStatus(
            name=self.name,
            state=state,
            backend=submission.backend,
            address=submission.address,
            submission=submission.number,
            attempt=0 if claim is None else claim.number,
            host="" if claim is None else claim.host,
            epoch=max(0 if heartbeat is None else heartbeat.epoch, _last_epoch(result)),
            epochs=result.num_epochs if result is not None else 0 if heartbeat is None else heartbeat.epochs,
            step=max(0 if heartbeat is None else heartbeat.step, _last_step(result)),
            workers=0 if heartbeat is None else heartbeat.world_size,
            why=why,
            submitter=self._submitter(submission),
            cluster=claim.cluster if claim is not None and submission.backend == FLEET else "",
            code=None if ended is None else ended.code,
        )

    def note_lost(self, submission: Submission, why: str) -> None:
        """Record that a lost submission is lost, so that nobody asks its backend again.

        Not where it may still be heard of: then its backend has a record of the end, or no file of the job has changed
        for an hour. A process that starts late removes the note. Raises `OSError`.
        """
        # It may have ended just now.
        if self._is_forgotten(submission) and self._files.ended(submission.number) is None:
            self._files.end(submission.number, SubmissionEnd(how="lost", why=why))

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines of the newest submission.

        With `follow`, until it ends. A submission to a fleet has the lines of each attempt behind a line with its
        number. What a job writes may have control characters in it: `forebay logs` replaces them.
        """
        is_of_fleet, last = self.submission.backend == FLEET, ""
        for each in self.log_lines(follow=follow):
            if is_of_fleet and each.part != last:
                yield f"== {each.part} =="
            last = each.part
            yield each.line

    def log_lines(self, *, follow: bool = False) -> Iterator[LogLine]:
        """Lines as `logs` has them, each with its part."""
        submission, shown = self.submission, dict[str, int]()
        while True:
            is_over = not follow or self.status().is_over
            for title, content in self._files.logs(submission).items():
                end = len(content) if is_over else content.rfind(b"\n") + 1
                # A file that was shortened is shown again.
                begin = shown.get(title, 0) if end >= shown.get(title, 0) else 0
                for line in content[begin:end].decode(errors="replace").splitlines():
                    yield LogLine(part=title, line=line)
                shown[title] = end
            if is_over:
                return
            time.sleep(POLL_S)

    def wait(self, timeout_s: float | None = None) -> Result | None:
        """Wait for the end, and return the result.

        It is None for a job without runs. Raises `RunFailed`, `TimeoutError`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (status := self.status()).is_over:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {self.name!r} is {status.state} after {timeout_s:g} s")
            time.sleep(POLL_S)
        if status.state in ("succeeded", "stopped"):
            return self.result()
        if status.state == "refused":
            raise RunFailed(f"job {self.name!r} was refused: {status.why}", name=self.name)
        raise RunFailed(
            f"job {self.name!r}: {status.state}{': ' + status.why if status.why else ''}. `forebay logs "
            f"{self.name}` shows what it wrote. Submit it again to continue from its newest checkpoint.",
            name=self.name,
        )

    def stop(self, reason: str = "forebay stop", *, now: bool = False) -> None:
        """Ask the job to end after its next checkpoint.

        The request is a file in its storage. With `now`, end its process.
        """
        if now:
            submission = self.submission
            self._backend_of(submission).end(submission)
        elif not self.stop_waiting(reason):
            self.request(stop=reason)

    def stop_waiting(self, reason: str) -> bool:
        """Take the job out of a queue.

        Returns whether it was in one: no process would read a request there.
        """
        submission = self._files.newest()
        if submission is None or self._files.ended(submission.number) is not None:
            return False
        backend = self._backend_of(submission)
        if not backend.standing(submission).is_waiting:
            return False
        backend.end(submission)
        self._files.end(submission.number, SubmissionEnd(how="stopped", why=reason))
        return True

    def request(self, *, stop: str | None = None, target: int | None = None) -> tuple[int, Request]:
        """Add to the stored request to the run that trains, or comes next.

        Returns the number of its attempt, and all that is requested of it. Raises `InvalidOption` for a job that has
        ended, and for one of commands, which obey no request.
        """
        submission, storage = self.submission, self._files.storage
        names = [submission.spec.run_name(task) for task in ordered(submission.spec.task) if task.run is not None]
        if not names:
            remedy = "`fb.fleet.SubmittedJob.stop(now=True)` ends its process."
            if submission.backend == SLURM:
                remedy = f"`scancel --name={submission.id.rpartition('-')[0]}` ends it."
            raise InvalidOption(
                f"the tasks of job {self.name!r} are commands, which obey no request: nothing was changed. {remedy}",
                name=self.name,
            )
        for name in names:
            if live_attempt(storage, name) is not None:
                return _send(storage, name, stop=stop, target=target)
        if self.status().is_over:
            return send_request(storage, self._run_name, stop=stop, target=target)
        newest = {name: AttemptFiles(RunFolder.below(storage, name)).newest() for name in names}
        after = submission.after
        waits = (name for name, claim in newest.items() if claim is None or claim.number <= after.get(name, 0))
        return send_request(storage, next(waits, self._run_name), stop=stop, target=target, is_awaited=True)

    @property
    def live_attempt(self) -> Claim | None:
        """Newest attempt of a run of the job that may still train."""
        spec = self.submission.spec
        found = (live_attempt(self._files.storage, spec.run_name(task)) for task in spec.task)
        return next((claim for claim in found if claim is not None), None)

    def cost(self) -> RunCost:
        """Return the cost so far of the job's runs, over all attempts.

        The amount is None where a price is unknown, as of a task that is a command.
        """
        spec, storage = self.submission.spec, self._files.storage
        runs = [RunFolder.below(storage, spec.run_name(task)) for task in spec.task if task.run is not None]
        found = total_cost(_cost(run) for run in runs)
        return found if len(runs) == len(spec.task) else replace(found, amount=None)

    def result(self) -> Result | None:
        """Return the result so far of the last training task.

        It is read from storage, also when the cluster is gone.
        """
        return load_result(self._run)

    @property
    def _run_name(self) -> str:
        spec = self.submission.spec
        trained = [task for task in ordered(spec.task) if task.run is not None] or list(spec.task)
        return spec.run_name(trained[-1])

    @property
    def _run(self) -> RunFolder:
        return RunFolder.below(self._files.storage, self._run_name)

    def _preparing(self, submission: Submission) -> str | None:
        """Return what the job prepares now, or None."""
        spec, storage = submission.spec, self._files.storage
        runs = (RunFolder.below(storage, spec.run_name(task)) for task in ordered(spec.task) if task.run is not None)
        return next((text for run in runs if (text := preparing_text(run)) is not None), None)

    def _submitter(self, submission: Submission) -> str:
        with suppress(InvalidOption):
            accepted = self._files.accepted(submission.number) if submission.backend == FLEET else None
            if accepted is not None and accepted.submitter:
                return accepted.submitter
        return f"says {submission.says}" if submission.says else ""

    def _live_state(self, submission: Submission) -> JobState:
        has_started = self._files.started(submission.number) is not None
        is_alive = self._backend_of(submission).is_alive(submission)
        if is_alive is None:
            if submission.backend != "local" or self._files.launched(submission.number) is not None:
                return "unreachable"
            listed = self._files.listed()
            is_new = listed is None or time.time() - listed.changed_at < STARTS_WITHIN_S
            return "starting" if is_new else "lost"
        if is_alive:
            return "running" if has_started else "starting"
        ended = self._files.ended(submission.number)  # between the two questions
        return "lost" if ended is None else ended.how

    def _is_forgotten(self, submission: Submission) -> bool:
        if self._backend_of(submission).has_ended(submission):
            return True
        if submission.backend == SLURM and not self._is_own(submission):
            return False  # SLURM may show a user only their own jobs
        runs = [RunFolder.below(self._files.storage, submission.spec.run_name(task)) for task in submission.spec.task]
        listed = self._files.listed()
        times = [0.0 if listed is None else listed.changed_at, *(AttemptFiles(run).changed_at() for run in runs)]
        return time.time() - max(times) > FORGOTTEN_S

    def _backend_of(self, submission: Submission) -> JobBackend:
        given = self._backend
        if given is None or (given.name, given.address) != (submission.backend, submission.address):
            # Kept: it may use an answer of a queue again.
            is_own = submission.backend != "ray" or self._is_own(submission)  # else a second read for nothing
            given = self._backend = backend_of(submission.backend, submission.address, is_own)
        return given

    def _is_own(self, submission: Submission) -> bool:
        """Whether only this user may write the file of a submission."""
        stored = self._files.newest_stored()
        owner = None if stored is None or stored.number != submission.number else stored.owner
        return owner is not None and owner.is_alone and owner.uid == os.geteuid()

    def _repr_html_(self) -> str:
        """Card for notebooks."""
        status = self.status()
        facts = {
            "state": status.state + (f": {status.why}" if status.why else ""),
            "where": f"{status.backend} {status.address} {status.host}".strip(),
            "progress": f"epoch {min(status.epoch + 1, status.epochs)} of {status.epochs}, step {status.step}"
            if status.epochs
            else "-",
            "folder": self.path,
        }
        rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
        return f"<table><caption>{html.escape(self.name)}</caption>{rows}</table>"


def live_attempt(storage: str, run: str) -> Claim | None:
    """Return the newest attempt of a run, if it may still train.

    Raises `OSError` if storage does not answer.
    """
    files = AttemptFiles(RunFolder.below(storage, run))
    claim = files.newest()
    has_ended = claim is None or files.ended(claim.number) is not None or claim.is_dead()
    return None if has_ended else claim


def is_under_way(storage: str, name: str) -> bool:
    """Whether a job or run of this name may still train there."""
    files = JobFiles(storage=storage, name=name)
    newest = files.newest()
    if newest is None:
        return live_attempt(storage, name) is not None
    return files.ended(newest.number) is None or SubmittedJob(storage, name).live_attempt is not None


def request_of(storage: str, name: str, *, stop: str | None = None, target: int | None = None) -> tuple[int, Request]:
    """Add to the stored request to a job or run. Raises as `SubmittedJob.request`."""
    if JobFiles(storage=storage, name=name).newest() is None:
        return _send(storage, name, stop=stop, target=target)
    return SubmittedJob(storage, name).request(stop=stop, target=target)


def _send(storage: str, name: str, *, stop: str | None, target: int | None) -> tuple[int, Request]:
    """Send a request to a run that trains.

    Raises `InvalidOption` for a target out of the bounds that its start has recorded.
    """
    if target is not None and (claim := live_attempt(storage, name)) is not None:
        config = _config(RunFolder.below(storage, name), claim.number)
        low, high = config.get("job.min_workers"), config.get("job.max_workers")
        if isinstance(low, int) and isinstance(high, int):
            validate_target(name, target, low, high)
    return send_request(storage, name, stop=stop, target=target)


def _config(run: RunFolder, attempt: int) -> Mapping[str, Fact]:
    """Facts that a start has recorded, as soon as there are any."""
    with suppress(InvalidOption):  # a damaged timeline ends no request
        for start in reversed((load_timeline(run) or Timeline()).starts):
            if start.attempt == attempt:
                return start.origin.config
    return {}


def _cost(run: RunFolder) -> RunCost:
    try:
        timeline = load_timeline(run)
    except InvalidOption:  # only reports read it: one that is damaged is no fault of the job
        return UNKNOWN
    return UNKNOWN if timeline is None else cost_of(timeline)


def _last_epoch(result: Result | None) -> int:
    """Return the newest epoch of a result, from 0."""
    if result is None:
        return 0
    reported = [each.epoch for each in result.steps[-1:]]
    return max([*reported, *(each.epoch for each in result.epochs[-1:])], default=0)


def _last_step(result: Result | None) -> int:
    """Return the newest step of a result."""
    if result is None:
        return 0
    reported = [each.step for each in result.steps[-1:]]
    return max([*reported, *(each.step for each in result.epochs[-1:])], default=0)
