"""Log of a job in its storage.

It outlives the job's cluster.
"""

from __future__ import annotations

import threading
import time

from forebay.runtime.foreign_code import begin
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import resolve

WRITE_EVERY_S = 5.0
S_PER_MIB = 2.0
"""Seconds that each MiB adds to the time between two writes: an object store takes a file as a whole."""
LONGEST_LOG = 16 << 20


class StoredLog:
    """A log file at `uri`, written every few seconds.

    Above 16 MiB the oldest quarter is dropped. `earlier` is the content that the file has already.
    """

    def __init__(self, uri: str, earlier: bytes = b"") -> None:
        self._uri = uri
        self._lines = bytearray(earlier)
        self._changed = threading.Lock()
        self._writing = threading.Lock()
        self._due_at = time.monotonic()
        self._every_s = 0.2 if resolve(uri).is_local else WRITE_EVERY_S
        self._timer: threading.Timer | None = None

    def append(self, line: bytes) -> None:
        """Add a line, which ends with a line break."""
        with self._changed:
            self._lines += line
            if len(self._lines) > LONGEST_LOG:
                del self._lines[: LONGEST_LOG // 4]
                del self._lines[: self._lines.find(b"\n") + 1]
            self._write_later()

    def flush(self) -> None:
        """Write the file now.

        If storage does not answer, it is written later.
        """
        with self._writing:
            with self._changed:
                content, self._timer = bytes(self._lines), None
            try:
                write_atomically(self._uri, content)
            except OSError:
                is_written = False
            else:
                is_written = True
            with self._changed:
                self._due_at = time.monotonic() + self._every_s + S_PER_MIB * len(content) / 2**20
                if not is_written:
                    self._write_later()

    def _write_later(self) -> None:
        if self._timer is None:
            timer = threading.Timer(max(0.0, self._due_at - time.monotonic()), self.flush)
            timer.daemon = True  # a process that ends writes the rest itself
            self._timer = begin(timer)
