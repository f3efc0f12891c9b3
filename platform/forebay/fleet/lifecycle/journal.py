"""Journal of a fleet's jobs in SQLite.

It is a cache of what clusters and storage say, with the reasons of each decision.
"""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.errors import InvalidOption, WriteFailed
from forebay.fleet.lifecycle.states import JobEnd, JobQueued, JobState, state_from_facts, state_to_facts
from forebay.fleet.spec.canonical import facts_of
from forebay.fleet.spec.job_spec import JobSpec, Task, ordered
from forebay.fleet.spec.job_toml import spec_of
from forebay.storage.private_folder import mount_of

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    name TEXT PRIMARY KEY, spec TEXT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL,
    is_ended INTEGER NOT NULL, submitted_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS live_jobs ON jobs (is_ended, submitted_at);
CREATE TABLE IF NOT EXISTS reasons (job TEXT NOT NULL, at REAL NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS reasons_of ON reasons (job, at);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A task of a job, as the journal has it."""

    spec: JobSpec
    task: Task
    state: JobState
    submitted_at: float

    @property
    def name(self) -> str:
        """Name of its run."""
        return self.spec.run_name(self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a job came into a state."""

    at: float
    state: str
    why: str


class JobJournal:
    """Tasks of jobs, by the names of their runs.

    Losing it loses no job: storage and the clusters make it again. Raises `WriteFailed` for a full or broken disk, and
    `InvalidOption` for one that machines share, and for a file that is damaged or of another release.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        if (mount := mount_of(path)) is not None and mount.is_shared:
            # Its write-ahead log is shared memory.
            raise InvalidOption(
                f"the journal {self._path} is on {mount.title}, a network file system. Name a file on a local disk: "
                "losing it loses no job.",
                path=self._path,
            )
        with self._answering():
            self._database = sqlite3.connect(self._path, isolation_level=None)
        self._ask("PRAGMA journal_mode=WAL")
        self._ask("PRAGMA synchronous=NORMAL")
        for statement in _SCHEMA.split(";"):
            self._ask(statement)

    def add(self, spec: JobSpec, at: float) -> None:
        """Add the tasks of a job, unless known.

        The name decides.
        """
        text, state = json.dumps(facts_of(spec), sort_keys=True), json.dumps(state_to_facts(JobQueued(since=at)))
        for task in ordered(spec.task):
            values = (spec.run_name(task), text, task.name, state, 0, at)
            self._ask("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", values)

    def replace(self, spec: JobSpec) -> None:
        """Give the known tasks of a job another specification."""
        text = json.dumps(facts_of(spec), sort_keys=True)
        for task in spec.task:
            values = (text, task.name, spec.run_name(task))
            self._ask("UPDATE jobs SET spec = ?, task = ? WHERE name = ?", values)

    def record(self, name: str, state: JobState, at: float, why: str) -> None:
        """Write the new state of a job, and why."""
        text = json.dumps(state_to_facts(state))
        self._ask("UPDATE jobs SET state = ?, is_ended = ? WHERE name = ?", (text, isinstance(state, JobEnd), name))
        if why:
            self._ask("INSERT INTO reasons VALUES (?, ?, ?, ?)", (name, at, type(state).__name__, why))

    def submit_again(self, name: str, state: JobQueued, at: float) -> None:
        """Queue a job behind those that were submitted before `at`."""
        self._ask("UPDATE jobs SET submitted_at = ? WHERE name = ?", (at, name))
        self.record(name, state, at, "it was submitted again")

    def entry(self, name: str) -> JournalEntry | None:
        """A job, or None."""
        rows = self._ask("SELECT spec, task, state, submitted_at FROM jobs WHERE name = ?", (name,))
        return self._entry(rows[0]) if rows else None

    def entries(self, *, live: bool = False) -> Iterator[JournalEntry]:
        """Yield jobs in the order of their submission.

        With `live`, those that have not ended.
        """
        where = "WHERE is_ended = 0" if live else ""
        query = f"SELECT spec, task, state, submitted_at FROM jobs {where} ORDER BY submitted_at, rowid"  # noqa: S608 - fixed text
        for row in self._ask(query):
            yield self._entry(row)

    def reasons(self, name: str) -> list[Reason]:
        """All decisions on a job, the oldest first."""
        rows = self._ask("SELECT at, state, why FROM reasons WHERE job = ? ORDER BY rowid", (name,))
        return [Reason(at=at, state=state, why=why) for at, state, why in rows]

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _ask(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        with self._answering():
            return self._database.execute(query, values).fetchall()

    def _entry(self, row: tuple[str, str, str, float]) -> JournalEntry:
        try:
            return _entry(row)
        except (InvalidOption, ValueError, LookupError, TypeError, StopIteration) as error:
            raise self._unusable(error) from error

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise WriteFailed(
                f"the journal {self._path} cannot be written ({error}). Give its disk room and a folder that is there, "
                "or remove the file: it is made again from storage and the clusters.",
                path=self._path,
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> InvalidOption:
        return InvalidOption(
            f"{self._path} is not a journal of this release ({error}). Remove the file: it is made again from storage "
            "and the clusters.",
            path=self._path,
        )


@functools.lru_cache(maxsize=16_384)
def _entry(row: tuple[str, str, str, float]) -> JournalEntry:
    # A state changes a few times in hours, and every round reads all jobs.
    spec_text, name, state, at = row
    spec = _spec(spec_text)
    task = next(each for each in spec.task if each.name == name)
    return JournalEntry(spec=spec, task=task, state=state_from_facts(json.loads(state)), submitted_at=at)


@functools.lru_cache(maxsize=4096)
def _spec(text: str) -> JobSpec:
    # The checks of a specification take a millisecond, and every round reads all jobs.
    return spec_of(json.loads(text))
