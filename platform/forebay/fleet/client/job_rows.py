"""Rows about all jobs of some storages, for tables and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import InvalidOption
from forebay.fleet.client.submission import JobFiles, folders_below
from forebay.fleet.client.submitted_job import OVER, JobStatus, SubmittedJob
from forebay.fleet.spec.job_spec import ordered
from forebay.storage.credentials import redact
from forebay.storage.filesystem import resolve
from forebay.training.runs.result import REPORT_FILE
from forebay.training.runs.run_folder import RunFolder

MOST_THREADS = 16
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
    `changed_at` is the time of its newest file, by the clock of its storage. `cost` is None where a price is unknown.
    """

    name: str
    storage: str
    state: str
    status: JobStatus | None = None
    why: str = ""
    runs: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    changed_at: float = 0.0
    cost: float | None = None

    def needs_person(self, now: float) -> bool:
        """Whether it ended badly of late, or cannot be reached."""
        return self.state == "unreachable" or (self.state in BAD_ENDS and now - self.changed_at < RECENT_S)

    @property
    def is_over(self) -> bool:
        return self.state in (*OVER, "unreadable")


class JobRows:
    """Reads the jobs of storages, again and again.

    A job that has ended is read once: its row is kept until a file of its submissions changes. `reasons` says why a
    run waits, for a process that knows.
    """

    def __init__(self, storages: Iterable[str], reasons: Reasons = lambda _: ()) -> None:
        self._storages, self._reasons = tuple(storages), reasons
        self._ended: dict[str, JobRow] = {}

    def read(self) -> list[JobRow]:
        """Rows of all jobs. Raises `OSError` if a storage does not answer."""
        found = [JobFiles(storage=each, name=name) for each in self._storages for name in folders_below(each)]
        with ThreadPoolExecutor(MOST_THREADS) as pool:
            rows = [row for row in pool.map(self._row, found) if row is not None]
        self._ended = {f"{row.storage} {row.name}": row for row in rows if row.is_over}
        return rows

    def _row(self, files: JobFiles) -> JobRow | None:
        changed_at = files.changed_at()
        if changed_at is None:
            return None
        known = self._ended.get(f"{files.storage} {files.name}")
        if known is not None and known.changed_at == changed_at:
            return known
        try:
            return self._read(files, changed_at)
        except InvalidOption as error:
            # A damaged file of one job: the others are shown.
            why = redact(str(error))
            return JobRow(name=files.name, storage=files.storage, state="unreadable", why=why, changed_at=changed_at)

    def _read(self, files: JobFiles, changed_at: float) -> JobRow:
        job = SubmittedJob(files.storage, files.name)
        submission, status = job.submission, job.status()
        waits = () if status.is_over else self._waits(job)
        is_quiet = status.state in ("succeeded", "stopped", "refused")
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
            last_lines=() if is_quiet else files.last_lines(submission, LOG_LINES, TAIL_BYTES),
            changed_at=changed_at,
            cost=job.cost().amount,
        )

    def _waits(self, job: SubmittedJob) -> tuple[str, ...]:
        spec = job.submission.spec
        return tuple(dict.fromkeys(text for task in spec.task for text in self._reasons(spec.run_name(task))))


def report_link(run: str) -> str | None:
    """Return the address of a run's report for a browser, or None.

    A report on this machine has one, if it was written.
    """
    location = resolve(run).child(REPORT_FILE)
    with suppress(OSError, ValueError):
        if location.is_local and Path(location.path).is_file():
            return Path(location.path).as_uri()
    return None
