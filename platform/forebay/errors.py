"""Errors that a user can cause or must act on.

Each message says what was set, what was found and what to do.
"""

from __future__ import annotations

import operator
from enum import IntEnum
from types import UnionType
from typing import ClassVar, SupportsIndex, cast


class ExitCode(IntEnum):
    """Exit codes of the command, by kind."""

    FAILED = 1
    """Accepted, begun, and failed. Another try may succeed."""
    USAGE = 2
    """Words that fit no command."""
    REFUSED = 3
    """Input that cannot be used: a file, a value, a job, a location. Another try fails as well."""
    MACHINE = 74
    """`EX_IOERR`: the fault of a machine or its storage, of which another attempt may be free."""
    FENCED = 75
    """`EX_TEMPFAIL`: another start has taken over."""
    UNUSABLE_STORAGE = 78
    """`EX_CONFIG`: storage that the machines of a job cannot use, or that is full."""
    INTERRUPTED = 130
    """128 + SIGINT: Ctrl-C."""
    TERMINATED = 143
    """128 + SIGTERM: asked to end. Started again, it continues."""


class ForebayError(Exception):
    """Base class of all errors for the user.

    `facts` become attributes (`error.path`, `error.rows`, ...) and survive pickling, so that a driver can use those of
    an error that was raised in another process.

    Attributes:
        exit_status: Exit code of a process that the error ends.
    """

    exit_status: ClassVar[int] = ExitCode.REFUSED

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts

    def __getattr__(self, name: str) -> object:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no fact {name!r}; it carries {sorted(facts)}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.facts)


def _rebuild(kind: type[ForebayError], message: str, facts: dict[str, object]) -> ForebayError:
    return kind(message, **facts)


class InvalidOption(ForebayError, ValueError):
    """An argument that can never work, with any data.

    Such as a negative batch or an unknown policy name.
    """


class BadUsage(InvalidOption):
    """Words of a command line that fit no data."""

    exit_status = ExitCode.USAGE


class MissingPackage(InvalidOption):
    """A package that is not installed.

    The text has the line that installs it.
    """


class UnsupportedRay(InvalidOption):
    """An installed Ray without a name that Forebay uses.

    The text has the line that installs a tested one.
    """


class InvalidJobSpec(InvalidOption):
    """A job file of a deployment that cannot work.

    It has an unknown key, a wrong value, or a secret that is written out.
    """


class SpecChanged(InvalidOption):
    """A job of this name exists with another specification."""


class RayNotStarted(ForebayError):
    """Ray could not be started on this machine.

    The text has the cause and what to look at.
    """

    exit_status = ExitCode.FAILED


class UnderWay(InvalidOption):
    """A run or sweep of this name is running now."""


class Fenced(ForebayError):
    """A later attempt has taken over this run.

    This one sent no heartbeat for too long. Never retried.
    """

    exit_status = ExitCode.FENCED


class UnusableStorage(ForebayError):
    """Storage that the machines of a job cannot use.

    No other attempt could, so a fleet does not retry it.
    """

    exit_status = ExitCode.UNUSABLE_STORAGE


class NoFiles(ForebayError):
    """The URI names no Parquet file with rows."""


class NotPlainParquet(ForebayError):
    """A folder of a table format.

    Delta Lake, Iceberg and Hudi also keep files of deleted rows there.
    """


class UnsupportedColumn(ForebayError):
    """A column of a valid file that Arrow cannot decode.

    A row group has too much nested text.
    """


class MixedSchemas(ForebayError):
    """Two files of one dataset disagree on a column."""


class MissingColumn(ForebayError):
    """A requested column is not in the files."""


class WrongType(ForebayError):
    """A column's type does not suit its feature."""


class CorruptFile(ForebayError):
    """A footer or a page that cannot be decoded."""


class NotParquet(CorruptFile):
    """A file of another format, or an encrypted one."""


class SourceChanged(ForebayError):
    """A file is not the version in the manifest."""


class ReadFailed(ForebayError):
    """Storage kept failing, or did not answer, until the deadline."""

    exit_status = ExitCode.MACHINE


class LimitReached(ForebayError):
    """Memory, or the number of threads, does not suffice.

    The process, its container or the machine limits them.
    """

    exit_status = ExitCode.MACHINE


class Cancelled(ForebayError):
    """A read was stopped.

    Its caller requested it, or the process is ending.
    """

    exit_status = ExitCode.FAILED


class WriteFailed(ForebayError):
    """Storage refused to write something that must be kept."""

    exit_status = ExitCode.MACHINE


class StorageFull(WriteFailed):
    """Storage that all machines of a job share has no room.

    No other attempt would find any: a submitted job is not tried again.
    """

    exit_status = ExitCode.UNUSABLE_STORAGE


class PreparationFailed(ForebayError):
    """A dataset will not be completed.

    A process that prepares it ended, or a span could not be prepared.
    """

    exit_status = ExitCode.FAILED


class InvalidDocument(ForebayError):
    """A row of text data that cannot become tokens.

    It is not JSON, lacks a column, or holds no conversation.
    """


class TransformFailed(ForebayError):
    """A transform raised, or did not return a block."""

    exit_status = ExitCode.FAILED


class RowCountChanged(TransformFailed):
    """A transform returned another number of rows than its input."""


class AugmentFailed(ForebayError):
    """An augment raised, or did not return the same rows."""

    exit_status = ExitCode.FAILED


class NullLabel(TransformFailed):
    """A label column holds nulls, NaN or infinities."""

    exit_status = ExitCode.REFUSED


class BadSeries(TransformFailed):
    """Rows that no series can be made of.

    They have a null entity or time, repeat a step, or belong to runs that overlap.
    """

    exit_status = ExitCode.REFUSED


class Unfingerprintable(ForebayError):
    """A user function that cannot be fingerprinted by its source.

    It needs an explicit version.
    """


class TooManyRanks(ForebayError):
    """The data order has fewer lanes than there are ranks."""


class BatchTooSmall(ForebayError):
    """A global batch has fewer rows than there are workers."""


class CacheUnusable(ForebayError):
    """A cache directory that is not writable, or not safe."""

    exit_status = ExitCode.MACHINE


class CursorMismatch(ForebayError):
    """A cursor of another plan, or of an unknown version."""


class JobMismatch(ForebayError):
    """A run was begun by a different job.

    With another model, other options of its data, or another adapter.
    """


class LoaderClosed(ForebayError):
    """Batches were requested from a closed loader."""

    exit_status = ExitCode.FAILED


class BadJob(ForebayError):
    """A job file that does not load, or a wrong parameter."""


class BadParameter(BadJob):
    """A parameter that is unknown, missing, or of another type."""

    exit_status = ExitCode.USAGE


class RunFailed(ForebayError):
    """A run ended without finishing, after its allowed failures."""

    exit_status = ExitCode.FAILED


class SweepFailed(ForebayError):
    """Every trial of a sweep failed."""

    exit_status = ExitCode.FAILED


class Diverged(ForebayError):
    """A monitor rejects the training.

    At once, such as for a loss that is not finite, or after every retry from the newest checkpoint.
    """

    exit_status = ExitCode.FAILED


class EngineFailed(ForebayError):
    """An engine that scores can answer no more.

    It has to be opened again.
    """

    exit_status = ExitCode.FAILED


class ScoringFailed(ForebayError):
    """A scoring run cannot go on.

    The shards that are written are kept.
    """

    exit_status = ExitCode.FAILED


class Hung(ForebayError):
    """A rank got no answer from another one.

    A rank hangs, though its process is alive.
    """

    exit_status = ExitCode.FAILED


def whole_number(name: str, value: object, least: int = 0, most: int | None = None) -> int:
    """Return `value` as a plain int.

    Accepts NumPy's integers. Raises `InvalidOption` for anything else, or out of range.

    >>> whole_number("epoch", 3)
    3
    """
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise InvalidOption(f"{name}={value!r}: it must be a whole number {bounds}.", **{name: value})
    return number


def validate_type(option: str, value: object, kind: type | UnionType, give: str) -> None:
    """Raise `InvalidOption` unless `value` is of a type.

    `give` says what to give instead.

    >>> validate_type("name", None, str | None, "a text")
    """
    if not isinstance(value, kind):
        raise InvalidOption(f"{option}={value!r:.200}: give {give}.", option=option)
