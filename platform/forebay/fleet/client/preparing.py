"""Progress of the preparation, the first step of a run.

It is a file in the run's folder.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from forebay.runtime.foreign_code import begin
from forebay.storage.filesystem import resolve_source
from forebay.storage.json_file import read_json_content
from forebay.training.runs.run_folder import RunFolder

FILE_NAME = "preparing.json"
FIRST_S = 1.0
"""Time before the first write: most jobs have nothing to prepare, and send no request."""
WRITE_EVERY_S = 5.0
JOIN_S = 10.0


class PreparingFile:
    """Context manager that shows what a run prepares.

    A thread writes the newest message, and deletes the file at the end. Storage that does not answer fails nothing: the
    progress is for people.
    """

    def __init__(self, storage: str, run: str) -> None:
        self._run = RunFolder.below(storage, run)
        self._text = "the data of the job"
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="forebay-preparing", daemon=True)

    def tell(self, text: str) -> None:
        """Show `text` with the next write."""
        self._text = text

    def __enter__(self) -> Self:
        begin(self._thread)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._has_ended.set()
        self._thread.join(JOIN_S)

    def _watch(self) -> None:
        written = ""
        if self._has_ended.wait(FIRST_S):
            return
        while True:
            text = self._text
            try:
                if text != written:
                    self._run.write(FILE_NAME, json.dumps({"what": text, "at": time.time()}))
                    written = text
            except OSError:
                written = ""
            if self._has_ended.wait(WRITE_EVERY_S):
                break
        self._delete()

    def _delete(self) -> None:
        location = self._run.location.child(FILE_NAME)
        with suppress(OSError):
            location.fs.delete_file(location.path)


def preparing_text(run: RunFolder) -> str | None:
    """Return what a run prepares now, or None.

    Raises `OSError` if storage does not answer.
    """
    try:
        return str(json.loads(read_json_content(resolve_source(run.location.child(FILE_NAME))))["what"])
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, RecursionError):
        return None
