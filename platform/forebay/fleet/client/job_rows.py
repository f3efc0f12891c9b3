"""Rows about all jobs of some storages, for tables and pages."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import InvalidOption
from forebay.fleet.client.submission import JobFiles, ListedJob, folders_below
from forebay.fleet.client.submitted_job import OVER, JobStatus, SubmittedJob
from forebay.fleet.spec.job_spec import ordered
from forebay.storage.credentials import redact
from forebay.storage.filesystem import resolve
from forebay.storage.retry import NotAFile
from forebay.training.runs.result import REPORT_FILE
from forebay.training.runs.run_folder import RunFolder
from forebay.training.runs.timeline.cost import UNKNOWN, RunCost

MOST_THREADS = 32
"""Threads, each with one request: of 10,000 jobs in a bucket, most are listed alone."""
MOST_ENDED = 100
"""Ended jobs that are read and shown: the newest ones."""
RECENT_S = 7 * 86_400.0
"""Time for which a job that ended badly needs a person."""
LOG_LINES = 4
TAIL_BYTES = 8192

BAD_ENDS = ("failed", "refused", "lost", "unreadable")
Reasons = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job at one moment.

    `runs` are the folders of its runs. `last_lines` are of its log, for a job that needs a person or goes on.
    `changed_at` is the time of its newest file, by the clock of its storage.
    """

    name: str
    storage: str
    state: str
    status: JobStatus | None = None
    why: str = ""
    runs: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    changed_at: float = 0.0
    cost: RunCost = UNKNOWN

    def needs_person(self, now: float) -> bool:
        """Whether it ended badly of late, or cannot be reached."""
        return self.state == "unreachable" or (self.state in BAD_ENDS and now - self.changed_at < RECENT_S)

    @property
    def is_over(self) -> bool:
        return self.state in (*OVER, "unreadable")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJobs:
    """Rows of jobs by storage and name, and the number of those that ended before them and are left out."""

    rows: list[JobRow]
    num_older: int = 0


class JobRows:
    """Reads the jobs of storages, again and again.

    Of a job that has ended, one listing says so. The newest `most_ended` of them are read, once: a row is kept until a
    file of its submissions changes. `reasons` says why a run waits, for a process that knows. `has_lines` is whether
    rows have the last lines of logs.
    """

    def __init__(
        self,
        storages: Iterable[str],
        reasons: Reasons = lambda _: (),
        *,
        most_ended: int | None = MOST_ENDED,
        has_lines: bool = True,
    ) -> None:
        self._storages, self._reasons = tuple(storages), reasons
        self._most_ended, self._has_lines = most_ended, has_lines
        self._ended: dict[str, JobRow] = {}

    def read(self) -> FoundJobs:
        """Rows of jobs. Raises `OSError` if a storage does not answer."""
        found = [JobFiles(storage=each, name=name) for each in self._storages for name in folders_below(each)]
        with ThreadPoolExecutor(MOST_THREADS) as pool:
            looked = [each for each in pool.map(_look, found) if each is not None]
            closed = [each for each in looked if isinstance(each, JobRow)]
            listed = [each for each in looked if isinstance(each, ListedJob)]
            ended = sorted((each for each in listed if each.has_ended), key=lambda each: -each.changed_at)
            older = {each.files.folder for each in ended[self._most_ended :]} if self._most_ended is not None else set()
            rows = list(pool.map(self._row, [each for each in listed if each.files.folder not in older]))
        self._ended = {f"{row.storage} {row.name}": row for row in rows if row.is_over}
        order = {(each.storage, each.name): number for number, each in enumerate(found)}
        rows = sorted([*rows, *closed], key=lambda row: order[row.storage, row.name])
        return FoundJobs(rows=rows, num_older=len(older))

    def _row(self, listed: ListedJob) -> JobRow:
        files, changed_at = listed.files, listed.changed_at
        known = self._ended.get(f"{files.storage} {files.name}")
        if known is not None and known.changed_at == changed_at:
            return known
        try:
            return self._read(listed)
        except (InvalidOption, OSError) as error:
            return _unreadable(files, error, changed_at)

    def _read(self, listed: ListedJob) -> JobRow:
        files = listed.files
        job = SubmittedJob(files.storage, files.name)
        submission, status = job.submission, job.status()
        if status.state == "lost" and not listed.has_ended:
            with suppress(OSError):  # a storage that this user may only read
                job.note_lost(submission, status.why)
        waits = () if status.is_over else self._waits(job)
        has_lines = self._has_lines and status.state not in ("succeeded", "stopped", "refused")
        return JobRow(
            name=files.name,
            storage=files.storage,
            state=status.state,
            status=status,
            why=redact(status.why or "; ".join(waits)),
            runs=tuple(
                RunFolder.below(files.storage, submission.spec.run_name(task)).uri
                for task in ordered(submission.spec.task)
                if task.run is not None
            ),
            last_lines=files.last_lines(submission, LOG_LINES, TAIL_BYTES) if has_lines else (),
            changed_at=listed.changed_at,
            cost=job.cost(),
        )

    def _waits(self, job: SubmittedJob) -> tuple[str, ...]:
        spec = job.submission.spec
        return tuple(dict.fromkeys(text for task in spec.task for text in self._reasons(spec.run_name(task))))


def _look(files: JobFiles) -> ListedJob | JobRow | None:
    try:
        return files.listed()
    except (InvalidOption, OSError) as error:
        return _unreadable(files, error)


def _unreadable(files: JobFiles, error: InvalidOption | OSError, changed_at: float = 0.0) -> JobRow:
    """Row of a job with a damaged file, or whose folder is closed to this user: the others are shown.

    Raises `error` if it may be of the whole storage.
    """
    is_own = isinstance(error, InvalidOption | NotAFile) or error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP)
    if not is_own:
        raise error
    why = redact(str(error))
    return JobRow(name=files.name, storage=files.storage, state="unreadable", why=why, changed_at=changed_at)


def older_text(number: int) -> str:
    """Sentence about jobs that are left out."""
    noun, verb = ("job", "is") if number == 1 else ("jobs", "are")
    return f"{number} {noun} that ended earlier {verb} left out: forebay jobs --all."


def report_link(run: str) -> str | None:
    """Return the address of a run's report for a browser, or None.

    A report on this machine has one, if it was written.
    """
    location = resolve(run).child(REPORT_FILE)
    with suppress(OSError, ValueError):
        if location.is_local and Path(location.path).is_file():
            return Path(location.path).as_uri()
    return None
