"""Exceptions of a train function, serialized for the driver."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

import cloudpickle

from forebay.errors import ForebayError, RunFailed, WriteFailed
from forebay.runtime.foreign_code import outcome_of
from forebay.runtime.user_frames import traceback_of
from forebay.storage.atomic import NO_ROOM


class WorkerTraceback(Exception):
    """Traceback of another process, as text.

    Shown as the cause of the error that was raised there.
    """

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerError:
    """Exception of a worker, with its rank.

    Picklable, even if the exception is not.
    """

    rank: int
    summary: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def of(cls, error: BaseException, rank: int) -> WorkerError:
        """Describe `error` while it is being handled.

        The traceback starts at the frames of the train function.
        """
        return cls(
            rank=rank,
            summary="".join(traceback.format_exception_only(error)).strip(),
            traceback=traceback_of(error),
            pickled=_pickle(error),
        )

    def as_error(self, name: str) -> ForebayError:
        """Return the error to raise on the driver.

        A `ForebayError` as itself, a full disk as `WriteFailed`, any other exception as the cause of a `RunFailed`.
        """
        original = self._original()
        if isinstance(original, ForebayError):
            original.__cause__ = WorkerTraceback(self.traceback)
            return original
        if isinstance(original, OSError) and original.errno in NO_ROOM:
            full = WriteFailed(
                f"run {name!r}: a disk of the machine of rank {self.rank} is full ({self.summary}). Make room there "
                f"and run {name!r} again: it continues from its newest checkpoint, if it has one.\n\n{self.traceback}",
                name=name,
                rank=self.rank,
            )
            full.__cause__ = original
            return full
        failed = RunFailed(
            f"run {name!r}: the train function raised {self.summary} on rank {self.rank}. It was not tried again: only "
            f"workers whose process died are replaced. {shortage_remedy(self.summary) or 'Correct the function'} and "
            f"run {name!r} again: it continues from its newest checkpoint, if it has one."
            f"\n\n{self.traceback}",
            name=name,
            rank=self.rank,
            summary=f"{self.summary} on rank {self.rank}",
            traceback=self.traceback,
        )
        failed.__cause__ = original
        return failed

    def _original(self) -> BaseException | None:
        if self.pickled is None:
            return None
        pickled = self.pickled
        original = outcome_of(lambda: cloudpickle.loads(pickled)).value  # the traceback is kept as text in any case
        return original if isinstance(original, BaseException) else None


def shortage_remedy(summary: str) -> str | None:
    """Remedy for a process without memory or threads.

    None for another error. Libraries name theirs differently.

    >>> shortage_remedy("RuntimeError: can't start new thread")
    'Allow more threads (ulimit -u, or pids of the container) or more memory,'
    """
    if "can't start new thread" in summary:
        return "Allow more threads (ulimit -u, or pids of the container) or more memory,"
    if re.search(r"MemoryError|OutOfMemory|out of memory|can't allocate memory", summary):
        return "Give the processes more memory, or let them need less (global_batch, micro-batches, DataWorkers),"
    return None


def _pickle(error: BaseException) -> bytes | None:
    return outcome_of(lambda: bytes(cloudpickle.dumps(error))).value  # the traceback is kept as text in any case
