"""A local file system for libraries that write files themselves: with it theirs are there whole or not at all, too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs

from forebay.storage.atomic import Draft
from forebay.storage.fsspec_bridge import Bridge


def whole_files() -> fs.FileSystem:
    """This machine's files; one replaces what was there when it is closed, and one that could not be written never."""
    return fs.PyFileSystem(_WholeFiles(LocalFileSystem()))


class _WholeFiles(Bridge):
    def open_output_stream(self, path: str, metadata: object) -> pa.PythonFile:  # noqa: ARG002 - pyarrow's signature
        return pa.PythonFile(_Whole(Draft(Path(path))), mode="w")


class _Whole:
    """An open file, as pyarrow wants it. No base class of Python's: those close what was only given up."""

    def __init__(self, draft: Draft) -> None:
        self.closed = False
        self._draft = draft
        self._position = 0

    def __del__(self) -> None:
        self._draft.give_up()

    def write(self, data: bytes) -> int:
        try:
            self._draft.write(data)
        except OSError:
            # Else whoever closes it would keep half of it.
            self.closed = True
            self._draft.give_up()
            raise
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._draft.keep()
        finally:
            self._draft.give_up()
