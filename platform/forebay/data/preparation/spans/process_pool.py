"""Calls of a function in several processes.

All processes run on this machine, with one core each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

from forebay.errors import ForebayError, PreparationFailed
from forebay.runtime.foreign_code import outcome_of
from forebay.runtime.pickling import pickled, unpickled

T = TypeVar("T")
R = TypeVar("R")

# Each process has one core for itself: libraries that start a thread per core would spin at each other's expense.
ONE_CORE = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_END_S = 5.0


def map_unordered(
    function: Callable[[T], R], tasks: Sequence[T], *, processes: int, apart: bool = False
) -> Iterator[R]:
    """Yield `function(task)` of each task, as done.

    With one process, it runs here, in order, unless it must run `apart`.

    Raises what the function raised. An error that does not belong to Forebay
    is a `PreparationFailed` with its text, as is the end of a process. The other processes end with the block that
    iterates.
    """
    if processes <= 1 and not apart:
        yield from map(function, tasks)
        return
    workers = [_WorkerProcess(number) for number in range(min(processes, len(tasks)))]
    try:
        payload = pickled(function)
        for worker in workers:
            worker.start(payload)
        waiting = iter(tasks)
        busy = [worker for worker in workers if worker.give(waiting)]
        while busy:
            answered = wait([worker.connection for worker in busy])
            for worker in [each for each in busy if each.connection in answered]:
                found = worker.result()
                if not worker.give(waiting):
                    busy.remove(worker)
                yield found
    finally:
        for worker in workers:
            worker.connection.close()
        give_up = time.monotonic() + _END_S
        for worker in workers:
            worker.end(give_up)


class _WorkerProcess:
    """Process that calls the function for each task."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.connection, theirs = Pipe()
        # Not multiprocessing.Process: its spawn imports the user's script again, which then needs a guard.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}\n"
            f"from forebay.data.preparation.spans.process_pool import serve; serve({theirs.fileno()})"
        )
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ONE_CORE},
        )
        theirs.close()

    def start(self, payload: bytes) -> None:
        """Send the function."""
        with suppress(BrokenPipeError, ConnectionResetError):  # `result` says why it ended
            self.connection.send_bytes(payload)

    def give(self, tasks: Iterator[Any]) -> bool:
        """Send the next task.

        Returns False if none is left.
        """
        for task in tasks:
            with suppress(BrokenPipeError, ConnectionResetError):  # `result` says why it ended
                self.connection.send(task)
            return True
        return False

    def result(self) -> Any:
        """Result of the task.

        Raises its error.
        """
        try:
            value, error = self.connection.recv()
        except (EOFError, OSError) as lost:
            code = self._process.wait()
            raise PreparationFailed(
                f"process {self._number} of the preparation ended with exit code {code} in the middle of a span. If "
                "it ran out of memory, prepare with fewer processes. What is finished is kept: prepare again.",
                exit_code=code,
            ) from lost
        if error is not None:
            raise error
        return value

    def end(self, give_up: float) -> None:
        """End the process.

        Its connection is closed, so it ends by itself, unless it is in the middle of a task. `give_up` is a time of
        `time.monotonic`.
        """
        try:
            self._process.wait(max(give_up - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(descriptor: int) -> None:
    """Run tasks in a process of the pool.

    Calls the function that arrives first for each task that follows, until the connection is closed.
    """
    connection: Connection = Connection(descriptor)
    try:
        function = unpickled(connection.recv_bytes())
        while True:
            task = connection.recv()
            outcome = outcome_of(lambda task=task: function(task))  # type: ignore[misc]
            if outcome.error is not None and not isinstance(outcome.error, Exception):
                sys.exit(1)
            connection.send((outcome.value, _portable(outcome.error)))
    except (EOFError, OSError):
        sys.exit(0)  # the process that prepares has ended


def _portable(error: BaseException | None) -> ForebayError | None:
    """Convert an error for any process to raise."""
    if error is None or isinstance(error, ForebayError):
        return error
    text = "".join(traceback.format_exception(error))
    return PreparationFailed(f"a span could not be prepared: {type(error).__name__}: {error}\n{text}")
