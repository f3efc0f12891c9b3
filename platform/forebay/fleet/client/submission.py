"""Submissions of a job, as files in its storage.

They outlive every cluster.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.spec.canonical import facts_of, key_of
from forebay.fleet.spec.job_spec import JobSpec, ordered
from forebay.fleet.spec.job_toml import spec_of
from forebay.fleet.submitter import FileOwner
from forebay.runtime.declared_types import require_facts, require_types
from forebay.storage.atomic import FULL, find_small, open_regular, write_atomically
from forebay.storage.boundary import may_open
from forebay.storage.exclusive import create_exclusively
from forebay.storage.filesystem import below, resolve, resolve_source
from forebay.storage.globs import children
from forebay.storage.json_file import read_json_content
from forebay.storage.retry import NotAFile
from forebay.training.checkpoint.files.claim import Claim

FOLDER = "submissions"
FLEET = "fleet"
"""Name of the backend whose submissions a controller follows."""
SLURM = "slurm"
VARIABLE = "FOREBAY_SUBMISSION"
"""Variable with the JSON of the submission, for the process that runs its tasks."""

_SUBMISSION = re.compile(r"\d{6}\.json")
_TIME = re.compile(rb"^\d{4}-\d\d-\d\dT\S+ ?", re.MULTILINE)

_NOT_A_SUBMISSION = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, InvalidJobSpec),
    NotAFile,
)
T = TypeVar("T")
How = Literal["succeeded", "failed", "stopped", "fenced", "refused", "lost"]

LONGEST_TEXT = 1000
LARGEST_BYTES = 1 << 20
"""Largest submission: a controller reads the newest one of each job in each round."""


class DamagedSubmission(InvalidOption):
    """A file in the place of a submission that is not one."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Submission `number` of a job.

    `address` is the backend's, `folder` holds the code, or `code` its digest. `after` has the newest attempt of
    each run that earlier submissions made: those attempts are not part of this one. `says` is the user and the machine
    that it names itself: anybody may write any name there.
    """

    spec: JobSpec
    number: int
    backend: str
    token: str
    address: str = ""
    folder: str = ""
    code: str | None = None
    after: Mapping[str, int] = field(default_factory=dict)
    says: str = ""

    @property
    def id(self) -> str:
        """Name from the job's name, its key, and `number`."""
        return PlacedAttempt(spec=self.spec, task=self.spec.task[0], number=self.number, sku="").name

    @property
    def key(self) -> str:
        """Key of the job."""
        return key_of(self.spec)

    def to_json(self) -> str:
        """Text of the file. Specifications hold no secrets."""
        facts = {name: value for name, value in _shallow(self).items() if name != "spec"}
        return json.dumps(facts | {"spec": facts_of(self.spec)})

    @classmethod
    def from_json(cls, text: str | bytes) -> Submission:
        """Decode the text."""
        facts: dict[str, Any] = json.loads(text)
        spec = spec_of(facts.pop("spec"))
        require_facts(facts, cls, [name for name in cls.__dataclass_fields__ if name != "spec"])
        return cls(spec=spec, **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSubmission:
    """A submission, and the number and owner of its file.

    `owner` is None on a store whose files have none.
    """

    submission: Submission
    number: int
    owner: FileOwner | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedBy:
    """Submitter of an accepted submission, and what vouches for that."""

    submitter: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionEnd:
    """End of a submission.

    `why` is its reason, `code` the exit code of the process that failed, if known. A lost one did not record it itself.
    """

    how: How
    why: str = ""
    code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Answer of a backend's queue about a submission.

    `is_waiting`: it does not run now, and will. `why` is for people.
    """

    is_waiting: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job by the names of its files.

    `has_ended` is of its newest submission. `changed_at` is the time of its newest file, by the clock of its storage.
    """

    files: JobFiles
    has_ended: bool
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """Files of a job, below `<storage>/<name>`.

    They are `submissions/000001.json`, `.accepted.json`, `.launched.json`, `.started.json`, `.ended.json`,
    `logs/<id>.log`, and in a fleet a log for each attempt.
    """

    storage: str
    name: str
    folder: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", below(resolve(self.storage).uri, self.name))

    def newest(self) -> Submission | None:
        """Return the newest submission of the job, or None.

        Raises `OSError` if storage does not answer, and `InvalidOption` for a file that is not a submission.
        """
        found = self.newest_stored()
        return None if found is None else found.submission

    def newest_stored(self) -> StoredSubmission | None:
        """Return the newest submission with the owner of its file.

        Raises as `newest`.
        """
        location = resolve(below(self.folder, FOLDER))
        try:
            sizes = {info.base_name: info.size for info in children(location.fs, location.path)}
        except (FileNotFoundError, NotADirectoryError):
            return None
        numbers = [int(name[:6]) for name in sizes if _SUBMISSION.fullmatch(name)]
        return self._stored(max(numbers), sizes[f"{max(numbers):06d}.json"] or 0) if numbers else None

    def _stored(self, number: int, size: int = 0) -> StoredSubmission | None:
        name = f"{number:06d}.json"
        try:
            if size > LARGEST_BYTES:
                raise ValueError(f"it has {size:,} bytes")
            content, owner = self._read_owned(name)
            if content is None:
                return None
            submission = Submission.from_json(content)
            self._check_storage(submission.spec.storage)
            return StoredSubmission(submission=submission, number=number, owner=owner)
        except _NOT_A_SUBMISSION as error:
            uri = self._uri(name)
            raise DamagedSubmission(
                f"{uri} is not a submission ({str(error)[:LONGEST_TEXT]}). Remove the file, and submit the job again.",
                uri=uri,
                number=number,
            ) from error

    def _check_storage(self, named: str) -> None:
        """Raise `ValueError` for a storage whose host the author of the file would choose."""
        if not may_open(named, resolve(self.storage)):
            raise ValueError(
                f"it names the storage {named!r}, and must not choose where credentials are sent. If that storage is "
                "yours, give it as --storage"
            )

    def _before(self, number: int) -> Submission | None:
        """Return an earlier submission, or None. A damaged one says nothing."""
        try:
            found = self._stored(number)
        except DamagedSubmission:
            return None
        return None if found is None else found.submission

    def replaced(self, submission: Submission) -> Mapping[str, int]:
        """Return the newest attempt of each run under an earlier specification.

        What those attempts have finished is not the result of this one. Raises `OSError` if storage does not answer.
        """
        first = submission
        for number in range(submission.number - 1, 0, -1):
            before = self._before(number)
            if before is None or key_of(before.spec) != key_of(submission.spec):
                return {} if before is None else first.after
            first = before
        return {}

    def listed(self) -> ListedJob | None:
        """Return what one listing of the job's submissions says. None without a submission.

        Raises `OSError` if storage does not answer.
        """
        location = resolve(below(self.folder, FOLDER))
        try:
            times = {info.base_name: info.mtime_ns or 0 for info in children(location.fs, location.path)}
        except (FileNotFoundError, NotADirectoryError):
            return None
        numbers = [name[:6] for name in times if _SUBMISSION.fullmatch(name)]
        if not numbers:
            return None
        has_ended = f"{max(numbers)}.ended.json" in times
        return ListedJob(files=self, has_ended=has_ended, changed_at=max(times.values()) / 1e9)

    def last_lines(self, submission: Submission, most: int, tail: int) -> tuple[str, ...]:
        """Return the last lines of the newest log, from its last `tail` bytes."""
        location = resolve(self.log_uri(submission))
        if submission.backend == FLEET:
            location = resolve(below(self.folder, "logs"))
            prefixes = tuple(
                f"{PlacedAttempt(spec=submission.spec, task=task, number=0, sku='').prefix}-"
                for task in submission.spec.task
            )
            try:
                found = children(location.fs, location.path)
            except (FileNotFoundError, NotADirectoryError):
                return ()
            times = {info.base_name: info.mtime_ns or 0 for info in found if info.base_name.startswith(prefixes)}
            if not times:
                return ()
            location = resolve(self.attempt_log_uri(max(times, key=times.__getitem__).removesuffix(".log")))
        try:
            with location.fs.open_input_file(location.path) as file:
                file.seek(max(0, file.size() - tail))
                content = bytes(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return ()
        lines = _TIME.sub(b"", content).decode(errors="replace").splitlines()
        return tuple([line for line in lines if line.strip()][-most:])

    def create(self, submission: Submission) -> bool:
        """Record a submission.

        Returns false if another one has its number. Raises as `create_exclusively`.
        """
        return create_exclusively(self._uri(f"{submission.number:06d}.json"), submission.to_json().encode())

    def launch(self, number: int, child: int) -> None:
        """Record the child of this process that is going to run the tasks.

        It imports for seconds before it can say so itself, and may die meanwhile.
        """
        self._write(f"{number:06d}.launched.json", Claim.of_this_process(number, pid=child).to_json())

    def launched(self, number: int) -> Claim | None:
        """Return the process that runs the tasks or is going to, if any."""
        content = None if (found := self.started(number)) else self._read(f"{number:06d}.launched.json")
        return found if content is None else Claim.from_json(content, self.folder)

    def start(self, number: int) -> None:
        """Record that this process runs the tasks. If it counted as lost, it does not any more."""
        self._write(f"{number:06d}.started.json", Claim.of_this_process(number).to_json())
        if (ended := self.ended(number)) is not None and ended.how == "lost":
            self._delete(f"{number:06d}.ended.json")

    def started(self, number: int) -> Claim | None:
        """Return the process that runs the tasks, if any."""
        content = self._read(f"{number:06d}.started.json")
        return None if content is None else Claim.from_json(content, self.folder)

    def end(self, number: int, end: SubmissionEnd) -> None:
        """Record the end of a submission.

        On a full disk it takes the room of the records of its start, which say nothing more beside an end.
        """
        name, content = f"{number:06d}.ended.json", json.dumps(asdict(end)).encode()
        try:
            self._write(name, content)
        except OSError as error:
            if error.errno not in FULL:
                raise
            for before in ("launched", "started"):
                self._delete(f"{number:06d}.{before}.json")
            self._write(name, content)

    def ended(self, number: int) -> SubmissionEnd | None:
        """Return the end of a submission, or None.

        Raises `OSError`, and `InvalidOption` for a damaged file.
        """
        return self._fact(f"{number:06d}.ended.json", SubmissionEnd)

    def accept(self, number: int, accepted: AcceptedBy) -> None:
        """Record whose submission this is, for tables."""
        self._write(f"{number:06d}.accepted.json", json.dumps(asdict(accepted)).encode())

    def accepted(self, number: int) -> AcceptedBy | None:
        """Return whose submission this is, as its controller found. Raises as `ended`."""
        return self._fact(f"{number:06d}.accepted.json", AcceptedBy)

    def uri(self, number: int) -> str:
        """URI of the record of submission `number`."""
        return self._uri(f"{number:06d}.json")

    def log_uri(self, submission: Submission) -> str:
        """URI of the log of a submission."""
        return below(below(self.folder, "logs"), f"{submission.id}.log")

    def attempt_log_uri(self, attempt: str) -> str:
        """Return the URI of the log of an attempt.

        `attempt` is the name of its RayJob in a fleet. Each line begins with its time.
        """
        return below(below(self.folder, "logs"), f"{attempt}.log")

    def logs(self, submission: Submission) -> Mapping[str, bytes]:
        """Return what a submission has written, by process.

        It is one process, or in a fleet an entry for each attempt, in order.
        """
        if submission.backend != FLEET:
            return {submission.id: find_small(resolve_source(self.log_uri(submission))) or b""}
        location = resolve(below(self.folder, "logs"))
        try:
            names = [info.base_name for info in children(location.fs, location.path)]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found: dict[str, bytes] = {}
        for task in ordered(submission.spec.task):
            prefix = PlacedAttempt(spec=submission.spec, task=task, number=0, sku="").prefix
            numbers = [each[1] for name in names if (each := re.fullmatch(rf"{prefix}-(\d+)\.log", name))]
            for number in sorted(numbers, key=int):
                content = find_small(resolve_source(self.attempt_log_uri(f"{prefix}-{number}"))) or b""
                found[f"{task.name}, attempt {number}"] = _TIME.sub(b"", content)
        return found

    def _uri(self, name: str) -> str:
        return below(below(self.folder, FOLDER), name)

    def _fact(self, name: str, kind: Callable[..., T]) -> T | None:
        content = self._read(name)
        if content is None:
            return None
        try:
            return require_types(kind(**json.loads(content)))
        except (ValueError, TypeError, RecursionError) as error:
            uri = self._uri(name)
            raise InvalidOption(
                f"{uri} was not written by Forebay, or is damaged ({error}). Remove the file.", uri=uri
            ) from error

    def _read_owned(self, name: str) -> tuple[bytes | None, FileOwner | None]:
        location = resolve_source(self._uri(name))
        if not location.is_local:
            return _bounded(self._read(name)), None
        try:
            with open_regular(Path(location.path)) as file:
                # Of the open file: another one may have its name a moment later.
                found = os.fstat(file.fileno())
                return _bounded(file.read(LARGEST_BYTES + 1)), FileOwner(uid=found.st_uid, mode=found.st_mode)
        except FileNotFoundError:
            return None, None

    def _read(self, name: str) -> bytes | None:
        try:
            return read_json_content(resolve_source(self._uri(name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _write(self, name: str, content: bytes) -> None:
        write_atomically(self._uri(name), content)

    def _delete(self, name: str) -> None:
        location = resolve(self._uri(name))
        with suppress(FileNotFoundError):
            location.fs.delete_file(location.path)


def jobs_below(storage: str) -> list[JobFiles]:
    """Return jobs submitted with this storage, sorted by name.

    Raises `OSError` if it does not answer.
    """
    found = [JobFiles(storage=storage, name=name) for name in folders_below(storage)]
    return [files for files in found if files.newest() is not None]


def folders_below(storage: str) -> list[str]:
    """Return the folders of jobs and runs in storage.

    Raises `OSError` if it does not answer.
    """
    location = resolve(storage)
    try:
        # By names alone: an entry that cannot be looked at, such as a link into a closed folder, hides no other job.
        if location.is_local:
            names = [each.name for each in Path(location.path).iterdir()]
        else:
            names = [info.base_name for info in children(location.fs, location.path)]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if not name.startswith(".") and _is_unicode(name))


def _is_unicode(name: str) -> bool:
    """Whether the bytes of a file's name are UTF-8. Python reads others as these surrogates."""
    return not any("\udc80" <= letter <= "\udcff" for letter in name)


def _bounded(content: bytes | None) -> bytes | None:
    # The file may have grown since it was listed.
    if content is not None and len(content) > LARGEST_BYTES:
        raise ValueError(f"it has more than {LARGEST_BYTES:,} bytes")
    return content


def _shallow(submission: Submission) -> Mapping[str, Any]:
    return {name: getattr(submission, name) for name in Submission.__dataclass_fields__}
