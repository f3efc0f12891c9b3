"""Main function of a process that prepares spans."""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection

from forebay.errors import ForebayError, PreparationFailed
from forebay.runtime.foreign_code import outcome_of
from forebay.runtime.pickling import unpickled


def serve(descriptor: int) -> None:
    """Call the function that arrives first for each task that follows, until the connection is closed."""
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
    """Error that any process can raise."""
    if error is None or isinstance(error, ForebayError):
        return error
    text = "".join(traceback.format_exception(error))
    return PreparationFailed(f"a span could not be prepared: {type(error).__name__}: {error}\n{text}")
