"""Exceptions of a train function, serialized for the driver."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import cloudpickle

from forebay.errors import ForebayError, RunFailed
from forebay.runtime.foreign_code import outcome_of

# Frames of Forebay that only lead up to the train function. Users did not write them, so the traceback leaves them out.
_OUR_FILES = (
    "doctor/diagnose.py",
    "doctor/rounds/examined_worker.py",
    "runtime/foreign_code.py",
    "training/driver/local/child.py",
    "training/driver/horovod/worker.py",
    "training/driver/local/driver.py",
    "training/driver/ray_train/worker.py",
    "training/driver/worker_main.py",
    "training/worker/worker.py",
)
_OUR_PATHS = {str(Path(__file__).parents[2] / name) for name in _OUR_FILES}


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
        lines = traceback.format_exception(type(error), error, _from_train_function(error.__traceback__))
        return cls(
            rank=rank,
            summary="".join(traceback.format_exception_only(error)).strip(),
            traceback="".join(lines),
            pickled=_pickle(error),
        )

    def as_error(self, name: str) -> ForebayError:
        """Return the error to raise on the driver.

        A `ForebayError` as itself, any other exception as the cause of a `RunFailed`.
        """
        original = self._original()
        if isinstance(original, ForebayError):
            original.__cause__ = WorkerTraceback(self.traceback)
            return original
        failed = RunFailed(
            f"run {name!r}: the train function raised {self.summary} on rank {self.rank}. It was not tried again: only "
            f"workers whose process died are replaced. The newest checkpoint is kept. "
            f"{shortage_remedy(self.summary) or 'Correct the function'} and run {name!r} again to continue from there."
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
    """What to do about an error of a process without memory or threads.

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


def _from_train_function(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames after Forebay's own leading frames.

    All frames if there are no others.
    """
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename in _OUR_PATHS:
        first = first.tb_next
    return first or frames
