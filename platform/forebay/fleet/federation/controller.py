"""Controller of a fleet: follows its submitted jobs.

It records their ends in their storage.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from forebay.errors import ForebayError, InvalidOption, ReadFailed, WriteFailed
from forebay.fleet.client.submission import (
    FLEET,
    AcceptedBy,
    DamagedSubmission,
    JobFiles,
    StoredSubmission,
    Submission,
    SubmissionEnd,
    folders_below,
)
from forebay.fleet.federation.acceptance import Acceptance, GpuShares, Judgement, Oversight, job_folder
from forebay.fleet.federation.audit import LONGEST_TEXT, AuditLine, AuditLog
from forebay.fleet.federation.federation import Federation
from forebay.fleet.federation.kube_clusters import KubeClusters
from forebay.fleet.federation.pod_logs import FleetLogs
from forebay.fleet.federation.run_storage import RunStorage, run_folder
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.lifecycle.decide import SeenClaim
from forebay.fleet.lifecycle.journal import JobJournal, JournalEntry
from forebay.fleet.lifecycle.states import (
    AttemptLost,
    AttemptPlacing,
    AttemptRunning,
    AttemptStarting,
    AttemptWithdrawing,
    JobEnd,
    JobFailed,
    JobQueued,
    JobStopped,
    JobSucceeded,
)
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.spec.canonical import key_of
from forebay.fleet.status import STALLED_S, LivenessTimer, Status
from forebay.fleet.submitter import Submitter
from forebay.runtime.formatting import printable
from forebay.storage.filesystem import below, resolve

ROUND_S = 5.0
"""Time between two rounds."""
POLL_S = 1.0
"""Time between two looks for new jobs."""
SOON_S = 0.1
"""Time until the round that creates what was claimed."""
AUDIT = ".audit"
"""Folder of the audit in the first storage, where the fleet file names none."""
READY_S = 120.0
"""Age of the last good round from which on a controller is not ready: some 24 rounds."""
LAST_LINES_S = 30.0
"""Longest time that the end of a job waits for the last lines of its logs."""

_STATES = {
    JobQueued: "queued",
    AttemptPlacing: "placing",
    AttemptStarting: "starting",
    AttemptRunning: "running",
    AttemptWithdrawing: "withdrawing",
    AttemptLost: "lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A submission that may run, and whose it is."""

    submission: Submission
    submitter: Submitter | None
    by: str


class FleetController:
    """Follows the jobs of a fleet, round by round.

    Any number of controllers may run: claims in storage decide between them. One may be killed at any point.

    Args:
        fleet: Clusters to place on.
        storages: Storages whose jobs are followed.
        journal: What this controller knows. A new one is filled from storage and the clusters.
        clusters: Requests to the clusters. By default to all of `fleet`.
        only: Name of the only job to follow. By default all.
        log: Called with each line of the audit.

    Attributes:
        storages: Storages that are followed: the given ones, and the submitters' of the fleet file.
        status: Health and metrics. Ready while the last round with an answer of a storage is 2 minutes old or less.
    """

    def __init__(
        self,
        fleet: Fleet,
        storages: Sequence[str],
        journal: JobJournal,
        *,
        clusters: KubeClusters | None = None,
        only: str | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._acceptance = Acceptance(fleet)
        self.storages = self._acceptance.followed(storages)
        self._fleet, self._journal, self._only = fleet, journal, only
        self._audit = AuditLog(fleet.audit or below(self.storages[0], AUDIT), log, time.time)
        self._storage = RunStorage()
        self._accepted: dict[str, Accepted] = {}
        self._replaced: dict[str, tuple[int, Mapping[str, int]]] = {}
        self._targets: dict[str, tuple[int, int]] = {}
        self._faults: dict[str, Exception] = {}
        self._folders: set[tuple[str, str]] = set()
        ports = clusters or KubeClusters(fleet)
        ports.complete = self._complete
        self._clusters = ports
        self._logs = FleetLogs()
        self._ended_at: dict[str, float] = {}
        self._is_described = False
        self._federation = Federation(
            fleet,
            ports,
            self._storage,
            journal,
            oversight=Oversight(note=self._note, shares=lambda entries: GpuShares(entries, self._owners())),
        )
        self._rounds = LivenessTimer(STALLED_S)
        self.status = Status(live={"rounds": self._rounds}, ready=LivenessTimer(READY_S, is_beating=False))
        self.status.set("controller_round_timestamp_seconds", 0)

    def fleet(self) -> Fleet:
        """Return the fleet as its clusters are described now.

        The catalogues are read at the first call, and then in each round.
        """
        if all(each.sku for each in self._fleet.cluster):
            return self._fleet
        if not self._is_described:
            self._clusters.describe_all()
            self._is_described = True
        return self._clusters.fleet()

    def notes(self) -> Iterator[str]:
        """Yield warnings about submitters, for the controller's start."""
        if not self._fleet.submitter:
            yield (
                "the fleet file has no [[submitter]]: whoever may write into "
                f"{', '.join(self.storages)} runs any image with any Secret of the namespaces"
            )
            return
        self._acceptance.fleet = self.fleet()
        yield from self._acceptance.shared_accounts()
        if self._fleet.audit is None:
            yield f"the audit lies in {self.storages[0]}: who may write there may change it. Give `audit` a folder."

    def step(self, now: float | None = None) -> bool:
        """Make one round.

        Returns whether a job is left to follow. Raises `OSError` if a storage does not answer, when the jobs of all
        others have had their round. `now` is in seconds, by default of this machine's clock, which the journal keeps.
        """
        now, began = time.time() if now is None else now, time.monotonic()
        is_left = self._step(now)
        self._rounds.beat()
        self.status.set("controller_round_seconds", time.monotonic() - began)
        self._tell(now)
        if self._faults:
            raise OSError("; ".join(dict.fromkeys(str(error) for error in self._faults.values())))
        return is_left

    def _tell(self, now: float) -> None:
        self.status.add("controller_rounds_total")
        if self._faults:
            self.status.add("controller_failed_rounds_total")
            # With one job's folder, or one storage of several, the controller has not stalled.
            if self._faults.keys() >= {resolve(storage).uri for storage in self.storages}:
                return
        live = list(self._journal.entries(live=True))
        self.status.replace("jobs", "state", Counter(_STATES[type(each.state)] for each in live))
        held = [each.state.since for each in live if isinstance(each.state, JobQueued) and self.reasons(each.name)]
        self.status.set("job_longest_wait_seconds", now - min(held, default=now))
        self.status.set("attempts_failed_total", self._federation.failed_attempts)
        self.status.set("controller_round_timestamp_seconds", time.time())
        self.status.ready.beat()

    def _step(self, now: float) -> bool:
        self._faults.clear()
        self._acceptance.fleet = self.fleet()
        followed = [pair for pair in self._open() if self._admit(*pair)]
        for files, found in followed:
            with self._answering(files.folder):
                self._add(files, found.submission, now)
        self._end_unaccepted({files.folder for files, _ in followed}, now)
        self._federation.step(now)
        self._note_targets(followed)
        for files, found in followed:
            self._rounds.beat()
            if files.folder in self._faults:  # what its storage has is not known
                continue
            with self._answering(files.folder):
                is_logged = self._follow_logs(files, found.submission)
                self._record(files, found.submission, now, is_logged=is_logged)
        return bool(followed)

    @contextmanager
    def _answering(self, place: str) -> Iterator[None]:
        """Keep the fault of a storage or a job's folder.

        The jobs of all others go on.
        """
        try:
            yield
        except (OSError, ForebayError) as error:
            self._faults[place] = error

    def wait(self, ended: threading.Event) -> None:
        """Wait for the next round.

        It comes after `ROUND_S`, and sooner for a new job or one that is being placed.
        """
        if any(isinstance(entry.state, AttemptPlacing) for entry in self._journal.entries(live=True)):
            ended.wait(SOON_S)
            return
        end = time.monotonic() + ROUND_S
        while time.monotonic() < end and not ended.wait(POLL_S):
            self._rounds.beat()
            if self._has_new_folder():
                # Its file is written after its folder.
                ended.wait(SOON_S)
                return

    def _has_new_folder(self) -> bool:
        """Whether a storage has a new folder.

        It takes one request per storage, however many jobs there are.
        """
        try:
            found = {(storage, name) for storage in self.storages for name in folders_below(storage)}
        except (OSError, ForebayError):
            return False  # the round tells
        is_new = not found <= self._folders
        self._folders |= found
        return is_new

    def reasons(self, name: str) -> tuple[str, ...]:
        """Reasons for which a run waits, one per cluster."""
        return self._federation.reasons(name)

    def _open(self) -> Iterator[tuple[JobFiles, StoredSubmission]]:
        """Submissions to the fleet that have not ended."""
        for storage in self.storages:
            names: list[str] = []
            with self._answering(resolve(storage).uri):
                names = folders_below(storage)
            for name in names:
                with self._answering(f"{resolve(storage).uri}/{name}"):
                    files = JobFiles(storage=storage, name=name)
                    found = self._newest(files) if self._only in (None, name) else None
                    if found is not None and files.ended(found.number) is None:
                        yield files, found

    def _newest(self, files: JobFiles) -> StoredSubmission | None:
        try:
            found = files.newest_stored()
        except DamagedSubmission as error:
            self._refuse(files, error.number, str(error), AuditLine(action="refused"))
            return None
        return found if found is not None and found.submission.backend == FLEET else None

    def _admit(self, files: JobFiles, found: StoredSubmission) -> bool:
        """Accept a submission, or refuse it.

        Returns whether it may run.
        """
        submission, is_accepted = found.submission, False
        with self._answering(files.folder):
            try:
                verdict = self._acceptance.judge(files, found)
                refusal = verdict.refusal or self._name_taken(submission)
            except InvalidOption as error:  # its storage cannot be a location
                verdict, refusal = Judgement(), str(error)
            name = "" if verdict.submitter is None else verdict.submitter.name
            line = AuditLine(action="accepted", submitter=name, by=verdict.by, says=submission.says)
            if refusal is not None:
                self._accepted.pop(files.folder, None)
                self._refuse(files, found.number, refusal, line)
            else:
                accepted = Accepted(submission=submission, submitter=verdict.submitter, by=verdict.by)
                if accepted != self._accepted.get(files.folder):
                    self._accept(files, accepted, line)
                is_accepted = True
        return is_accepted

    def _accept(self, files: JobFiles, accepted: Accepted, line: AuditLine) -> None:
        submission = accepted.submission
        before = self._journal.entry(submission.spec.run_name(submission.spec.task[0]))
        is_other = before is not None and key_of(before.spec) != submission.key
        line = replace(line, action="replaced" if is_other else "accepted")
        self._audit.note(_of_job(line, files, submission.number))
        # The submitter may have written this file: it is for tables, and decides nothing.
        files.accept(submission.number, AcceptedBy(submitter=line.submitter, by=line.by))
        self._accepted[files.folder] = accepted

    def _refuse(self, files: JobFiles, number: int, why: str, line: AuditLine) -> None:
        if files.ended(number) is None:
            self._audit.note(_of_job(replace(line, action="refused", why=why), files, number))
            files.end(number, SubmissionEnd(how="refused", why=printable(why)[:LONGEST_TEXT]))

    def _name_taken(self, submission: Submission) -> str | None:
        """Reason why the name cannot be used here, or None.

        Names are the fleet's.
        """
        folder = job_folder(submission.spec.storage, submission.spec.name)
        for task in submission.spec.task:
            known = self._journal.entry(submission.spec.run_name(task))
            if known is not None and job_folder(known.spec.storage, known.spec.name) != folder:
                return f"another storage of the fleet has a job {submission.spec.name!r}. Give this one another name."
        return None

    def _end_unaccepted(self, followed: set[str], now: float) -> None:
        """End queued tasks of submissions that are not accepted any more."""
        for entry in self._journal.entries(live=True) if self._fleet.submitter else ():
            folder = job_folder(entry.spec.storage, entry.spec.name)
            is_known = folder in followed or {folder, resolve(entry.spec.storage).uri} & self._faults.keys()
            if not is_known and isinstance(entry.state, JobQueued) and self._only in (None, entry.spec.name):
                why = "its submission is refused, or not there any more"
                self._journal.record(entry.name, JobFailed(number=entry.state.number, why=why), now, why)

    def _owners(self) -> dict[str, Submitter]:
        found = self._accepted.items()
        return {folder: each.submitter for folder, each in found if each.submitter is not None}

    def _note(self, line: AuditLine) -> None:
        """Note a line of the federation, with whose job it is about."""
        folder = job_folder(line.storage, line.job) if line.job else ""
        if (accepted := self._accepted.get(folder)) is not None:
            name = "" if accepted.submitter is None else accepted.submitter.name
            submission = accepted.submission
            line = replace(line, submitter=name, by=accepted.by, says=submission.says, submission=submission.number)
        self._audit.note(line)

    def _note_targets(self, followed: list[tuple[JobFiles, StoredSubmission]]) -> None:
        """Note the numbers of workers that users have asked for."""
        for files, found in followed:
            for entry in self._entries(found.submission):
                uri = run_folder(entry.spec, entry.task).uri
                asked = self._storage.targets.get(uri)
                if asked is not None and asked != self._targets.get(uri):
                    self._targets[uri] = asked
                    why = f"{asked[1]} workers were asked for"
                    line = AuditLine(action="scaled", run=entry.name, attempt=asked[0], why=why)
                    with suppress(WriteFailed):  # the run obeys by itself
                        self._note(_of_job(line, files, found.number))

    def _add(self, files: JobFiles, submission: Submission, now: float) -> None:
        replaced = self._attempts_replaced(files, submission)
        self._federation.submit(submission.spec, now)
        for entry in self._entries(submission):
            # It was submitted again after its end, and continues from its newest checkpoint.
            after, state = submission.after.get(entry.name, 0), entry.state
            is_new = isinstance(state, JobQueued) and state.number < after
            has_ended = isinstance(state, JobFailed | JobStopped) and state.number <= after
            is_replaced = isinstance(state, JobSucceeded) and state.number <= replaced.get(entry.name, -1)
            if is_new or has_ended or is_replaced:
                self._journal.submit_again(entry.name, JobQueued(since=now, number=after), now)
            elif isinstance(state, JobEnd) and state.number > after and self._is_removed(entry):
                # Its next attempt has a name of its own: the RayJob of the last one may still be there.
                self._journal.submit_again(entry.name, JobQueued(since=now, number=state.number), now)

    def _is_removed(self, entry: JournalEntry) -> bool:
        """Whether the attempt that ended a run is no longer in storage. Raises `ReadFailed`."""
        try:
            claim = self._storage.newest_claim(entry.spec, entry.task)
        except InvalidOption:
            return False
        return claim is None or claim.number < entry.state.number

    def _attempts_replaced(self, files: JobFiles, submission: Submission) -> Mapping[str, int]:
        """Return the newest attempt of each run under an earlier specification."""
        number, replaced = self._replaced.get(files.folder, (0, {}))
        if number != submission.number:
            replaced = files.replaced(submission)
            for task in submission.spec.task:
                self._storage.begin_after(submission.spec, task, replaced.get(submission.spec.run_name(task), 0))
            self._replaced[files.folder] = (submission.number, replaced)
        return replaced

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
                files.end(submission.number, SubmissionEnd(how="failed", why=failed.why, code=failed.code))
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
        accepted = self._accepted.get(job_folder(attempt.spec.storage, attempt.spec.name))
        if accepted is None and self._fleet.submitter:
            raise InvalidOption(f"no submission of {attempt.spec.name!r} is accepted: nothing of it starts.")
        token = self._storage.token(attempt.spec, attempt.task, attempt.number)
        if accepted is None:
            return replace(attempt, token=token)
        return replace(attempt, token=token, code=accepted.submission.code, submitter=accepted.submitter)


def _of_job(line: AuditLine, files: JobFiles, number: int) -> AuditLine:
    return replace(line, job=files.name, storage=files.storage, submission=number)
