"""Progress of a preparation, for a listener or the log.

The command line sets a listener.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from forebay.data.manifest.prepared import Prepared
from forebay.runtime.formatting import count_text, rate_text

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationProgress:
    """Rows and files written so far.

    They belong to the dataset `name`, after `seconds`.
    """

    name: str
    rows: int
    files: int
    seconds: float

    def __str__(self) -> str:
        rate = rate_text(self.rows / self.seconds if self.seconds > 0 else None)
        return f"{self.name}: {count_text(self.rows)} rows in {files_text(self.files)}, {rate}"


def files_text(count: int) -> str:
    """Number of files, for people."""
    return f"{count} file{'' if count == 1 else 's'}"


Report = str | PreparationProgress | Prepared
Listener = Callable[[Report], None]
_listener: ContextVar[Listener | None] = ContextVar("preparation_listener", default=None)


@contextmanager
def preparation_listener(listener: Listener) -> Iterator[None]:
    """Send messages of preparations to `listener`.

    It gets the messages, progress and results of this thread for the length of the block.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def present_listener() -> Listener | None:
    """Listener of this thread."""
    return _listener.get()


def tell(message: Report) -> None:
    """Report a message, progress or result.

    It goes to the listener, or to the log at level INFO.
    """
    listener = _listener.get()
    if listener is not None:
        listener(message)
    else:
        log.info("%s", message)
