"""File systems for Ray Tune.

A local one with atomic writes, and a remote one that pickles without credentials.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs

from forebay.storage.arrow_stores import writing_at_once
from forebay.storage.atomic import Draft
from forebay.storage.filesystem import Location, resolve
from forebay.storage.fsspec_bridge import Bridge


def whole_files() -> fs.FileSystem:
    """Local file system with atomic writes.

    A file replaces the earlier one when it is closed. A file whose write failed never does.
    """
    return fs.PyFileSystem(_WholeFiles(LocalFileSystem()))


class _WholeFiles(Bridge):
    def open_output_stream(self, path: str, metadata: object) -> pa.PythonFile:  # noqa: ARG002 - pyarrow's signature
        return pa.PythonFile(_Whole(Draft(Path(path))), mode="w")


class _Whole:
    """Open file for pyarrow.

    Not a subclass of `io.IOBase`, which would also close an abandoned file.
    """

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
            # Otherwise a later close would keep an incomplete file.
            self.closed = True
            self._draft.give_up()
            raise
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: nothing is buffered here."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._draft.keep()
        finally:
            self._draft.give_up()


def without_secrets(location: Location) -> fs.FileSystem:
    """Return a file system that pickles without credentials.

    The unpickling process uses the credentials it was granted.
    """
    return fs.PyFileSystem(_Granted(location.uri))


class _Granted(fs.FileSystemHandler):  # type: ignore[misc]
    """File system that is opened at its first use.

    Uploads do not use pyarrow's thread pool: copies call this from all of its threads.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._opened: fs.FileSystem | None = None

    def __reduce__(self) -> tuple[type[_Granted], tuple[str]]:
        return _Granted, (self._uri,)

    @property
    def _fs(self) -> fs.FileSystem:
        if self._opened is None:
            self._opened = writing_at_once(resolve(self._uri).fs)
        return self._opened

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Granted) and other._uri == self._uri

    def __hash__(self) -> int:
        return hash(self._uri)

    def get_type_name(self) -> str:
        return f"granted {self._fs.type_name}"

    def normalize_path(self, path: str) -> str:
        return str(self._fs.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return list(self._fs.get_file_info(paths))

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return list(self._fs.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        self._fs.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._fs.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self._fs.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        self._fs.delete_dir_contents("/", accept_root_dir=True)

    def delete_file(self, path: str) -> None:
        self._fs.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._fs.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._fs.copy_file(src, dest)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._fs.open_input_stream(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._fs.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self._fs.open_output_stream(path, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self._fs.open_append_stream(path, metadata=metadata)
