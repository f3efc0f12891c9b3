"""Controller of a fleet: follows its submitted jobs.

It records their ends in their storage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from forebay.errors import InvalidOption, ReadFailed
from forebay.fleet.client.submission import FLEET, JobFiles, Submission, SubmissionEnd, folders_below, jobs_below
from forebay.fleet.federation.federation import Federation
from forebay.fleet.federation.kube_clusters import KubeClusters
from forebay.fleet.federation.pod_logs import FleetLogs
from forebay.fleet.federation.run_storage import RunStorage
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.lifecycle.decide import SeenClaim
from forebay.fleet.lifecycle.journal import JobJournal, JournalEntry
from forebay.fleet.lifecycle.states import (
    AttemptPlacing,
    AttemptRunning,
    AttemptStarting,
    JobEnd,
    JobFailed,
    JobQueued,
    JobStopped,
)
from forebay.fleet.rayjob.attempt import PlacedAttempt

ROUND_S = 5.0
"""Time between two rounds."""
POLL_S = 1.0
"""Time between two looks for new jobs."""
SOON_S = 0.1
"""Time until the round that creates what was claimed."""
LAST_LINES_S = 30.0
"""Longest time that the end of a job waits for the last lines of its logs."""


class FleetController:
    """Follows the jobs of a fleet, round by round.

    Any number of controllers may run: claims in storage decide between them. One may be killed at any point.

    Args:
        fleet: Clusters to place on.
        storages: Storages whose jobs are followed.
        journal: What this controller knows. A new one is filled from storage and the clusters.
        clusters: Requests to the clusters. By default to all of `fleet`.
        only: Name of the only job to follow. By default all.
    """

    def __init__(
        self,
        fleet: Fleet,
        storages: Sequence[str],
        journal: JobJournal,
        *,
        clusters: KubeClusters | None = None,
        only: str | None = None,
    ) -> None:
        self._storages, self._journal, self._only = tuple(storages), journal, only
        self._storage = RunStorage()
        self._submissions: dict[str, Submission] = {}
        self._folders: set[tuple[str, str]] = set()
        ports = clusters or KubeClusters(fleet)
        ports.complete = self._complete
        self._clusters = ports
        self._logs = FleetLogs()
        self._ended_at: dict[str, float] = {}
        self._federation = Federation(fleet, ports, self._storage, journal)

    def step(self, now: float | None = None) -> bool:
        """Make one round.

        Returns whether a job is left to follow. Raises `OSError` if a storage does not answer. `now` is in seconds, by
        default of this machine's clock, which the journal keeps.
        """
        now = time.time() if now is None else now
        followed = list(self._open())
        for _, submission in followed:
            self._add(submission, now)
        self._federation.step(now)
        for files, submission in followed:
            is_logged = self._follow_logs(files, submission)
            self._record(files, submission, now, is_logged=is_logged)
        return bool(followed)

    def wait(self, ended: threading.Event) -> None:
        """Wait for the next round.

        It comes after `ROUND_S`, and sooner for a new job or one that is being placed.
        """
        if any(isinstance(entry.state, AttemptPlacing) for entry in self._journal.entries(live=True)):
            ended.wait(SOON_S)
            return
        end = time.monotonic() + ROUND_S
        while time.monotonic() < end and not ended.wait(POLL_S):
            if self._has_new_folder():
                # Its file is written after its folder.
                ended.wait(SOON_S)
                return

    def _has_new_folder(self) -> bool:
        """Whether a storage has a new folder.

        It takes one request per storage, however many jobs there are.
        """
        try:
            found = {(storage, name) for storage in self._storages for name in folders_below(storage)}
        except OSError:
            return False  # the round tells
        is_new = not found <= self._folders
        self._folders |= found
        return is_new

    def reasons(self, name: str) -> tuple[str, ...]:
        """Reasons for which a run waits, one per cluster."""
        return self._federation.reasons(name)

    def _open(self) -> Iterator[tuple[JobFiles, Submission]]:
        """Submissions to the fleet that have not ended."""
        for storage in self._storages:
            for files in jobs_below(storage):
                if self._only not in (None, files.name):
                    continue
                submission = files.newest()
                if submission is not None and submission.backend == FLEET and files.ended(submission.number) is None:
                    yield files, submission

    def _add(self, submission: Submission, now: float) -> None:
        self._submissions[submission.spec.name] = submission
        self._federation.submit(submission.spec, now)
        for entry in self._entries(submission):
            # It was submitted again after its end, and continues from its newest checkpoint.
            after = submission.after.get(entry.name, 0)
            is_new = isinstance(entry.state, JobQueued) and entry.state.number < after
            if is_new or (isinstance(entry.state, JobFailed | JobStopped) and entry.state.number <= after):
                again = JobQueued(since=now, number=after)
                self._journal.record(entry.name, again, now, "it was submitted again")

    def _follow_logs(self, files: JobFiles, submission: Submission) -> bool:
        """Copy the logs of a submission's attempts.

        Returns whether the logs of all ended attempts are complete.
        """
        live: set[str] = set()
        prefixes: list[str] = []
        for entry in self._entries(submission):
            state = entry.state
            attempt = PlacedAttempt(spec=entry.spec, task=entry.task, number=state.number, sku="")
            prefixes.append(f"{attempt.prefix}-")
            if isinstance(state, AttemptStarting | AttemptRunning):
                live.add(attempt.name)
                self._follow_log(files, attempt, state.target.cluster)
            elif isinstance(state, JobEnd) and state.number and files.name not in self._ended_at:
                # Once: it may have ended while no controller ran.
                claim = self._claim(entry)
                if claim is not None and claim.number == state.number:
                    self._follow_log(files, attempt, claim.target.cluster)
        ours = [name for name in self._logs.followed() if name not in live and name.startswith(tuple(prefixes))]
        ends = [self._logs.finish(name) for name in ours]
        return all(ends)

    def _follow_log(self, files: JobFiles, attempt: PlacedAttempt, cluster: str) -> None:
        uri = files.attempt_log_uri(attempt.name)
        self._logs.follow(attempt.name, uri, partial(self._clusters.log, cluster, attempt))

    def _claim(self, entry: JournalEntry) -> SeenClaim | None:
        try:
            return self._storage.newest_claim(entry.spec, entry.task)
        except (InvalidOption, ReadFailed):
            return None

    def _record(self, files: JobFiles, submission: Submission, now: float, *, is_logged: bool) -> None:
        """Record the start and the end of a submission.

        Its end waits for the logs: who follows them reads all.
        """
        states = [entry.state for entry in self._entries(submission)]
        if any(isinstance(state, AttemptRunning) for state in states) and files.started(submission.number) is None:
            files.start(submission.number)
        if all(isinstance(state, JobEnd) for state in states):
            if not is_logged and now - self._ended_at.setdefault(files.name, now) < LAST_LINES_S:
                return
            self._ended_at.pop(files.name, None)
            failed = next((state for state in states if isinstance(state, JobFailed)), None)
            if failed is not None:
                files.end(submission.number, SubmissionEnd(how="failed", why=failed.why))
            elif any(isinstance(state, JobStopped) for state in states):
                files.end(submission.number, SubmissionEnd(how="stopped", why="stopped by its user"))
            else:
                files.end(submission.number, SubmissionEnd(how="succeeded"))

    def _entries(self, submission: Submission) -> list[JournalEntry]:
        names = [submission.spec.run_name(task) for task in submission.spec.task]
        return [entry for name in names if (entry := self._journal.entry(name)) is not None]

    def _complete(self, attempt: PlacedAttempt) -> PlacedAttempt:
        """Return the attempt with its token and code digest.

        Its process adopts the claim by the token.
        """
        token = self._storage.token(attempt.spec, attempt.task, attempt.number)
        submission = self._submissions.get(attempt.spec.name)
        return replace(attempt, token=token, code=None if submission is None else submission.code)
