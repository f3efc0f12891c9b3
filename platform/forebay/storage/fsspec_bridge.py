"""A pyarrow file system over any fsspec file system.

Adds file versions, maps errors, and removes secrets from them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import fsspec
import pyarrow as pa
from pyarrow import fs

from forebay.runtime.foreign_code import replaced_errors
from forebay.storage.credentials import redacted

# Keys under which implementations report the time of the last change. The first is fsspec's own.
_TIMES = ("mtime", "modificationTime", "LastModified", "last_modified", "updated", "modified")

_MISSING = (404, 410)
"""Answers of an HTTP server that has no such file."""

ETAGS = ("generation", "ETag", "etag")
"""Keys of a version in a store's answer. The first is Google's, whose etag also changes with the metadata."""


class Bridge(fs.FSSpecHandler):  # type: ignore[misc]
    """An fsspec file system for pyarrow.

    pyarrow's own handler knows no time but `mtime`, and trusts cached listings.
    """

    @staticmethod
    def _create_file_info(path: str, info: dict[str, Any]) -> fs.FileInfo:
        return fs.FSSpecHandler._create_file_info(path, info | {"mtime": _time(info)})  # noqa: SLF001 - its own hook

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        # Some implementations cache listings without end: a file that changed since would look the same.
        self.fs.invalidate_cache()
        with _as_os_error():
            return [self._file_info(path) for path in paths]

    def _file_info(self, path: str) -> fs.FileInfo:
        try:
            info = self.fs.info(path)
        except FileNotFoundError as error:
            if (outage := _outage(error)) is not None:
                raise outage from error
            return fs.FileInfo(path, fs.FileType.NotFound)
        return self._create_file_info(path, info)

    def etag(self, path: str) -> str:
        """The store's name for the version of a file.

        Empty if the store has none.
        """
        self.fs.invalidate_cache()
        with _as_os_error():
            info = self.fs.info(path)
        return next((str(info[name]).strip('"') for name in ETAGS if info.get(name)), "")

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self.fs.invalidate_cache()
        with _as_os_error():
            found: list[fs.FileInfo] = super().get_file_info_selector(selector)
            return found

    def create_dir(self, path: str, recursive: bool) -> None:
        with _as_os_error():
            self.fs.makedirs(path, exist_ok=True) if recursive else super().create_dir(path, recursive)

    def delete_dir(self, path: str) -> None:
        with _as_os_error():
            super().delete_dir(path)

    def delete_file(self, path: str) -> None:
        with _as_os_error():
            super().delete_file(path)

    def move(self, src: str, dest: str) -> None:
        with _as_os_error():
            super().move(src, dest)

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self._open_input(path)

    def open_input_file(self, path: str) -> pa.PythonFile:
        return self._open_input(path)

    def open_output_stream(self, path: str, metadata: object) -> pa.PythonFile:  # noqa: ARG002 - pyarrow's signature
        with _as_os_error():
            return pa.PythonFile(_File(self.fs.open(path, mode="wb")), mode="w")

    def _open_input(self, path: str) -> pa.PythonFile:
        with _as_os_error():
            if self._file_info(path).type != fs.FileType.File:
                raise FileNotFoundError(path)
            return pa.PythonFile(_File(self.fs.open(path, mode="rb")), mode="r")


class _File:
    """Open file of fsspec whose errors are raised as `OSError`."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._file, name)
        return _guarded(value) if callable(value) else value


def _guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*arguments: Any) -> Any:
        with _as_os_error():
            return call(*arguments)

    return guarded


def _outage(error: FileNotFoundError) -> Exception | None:
    """Failure behind the error for a missing file, or None.

    fsspec's HTTP says that a file is missing whatever its server answered, and when there is no server.
    """
    cause = error.__cause__
    if not isinstance(cause, Exception) or getattr(cause, "status", None) in _MISSING:
        return None
    is_network = isinstance(cause, ConnectionError | TimeoutError) or type(cause).__module__.startswith("aiohttp")
    return cause if is_network else None


def _as_os_error() -> AbstractContextManager[None]:
    """Replace errors by `OSError`, which is retried.

    Every library that fsspec wraps has its own types.
    """
    return replaced_errors(_os_error, is_cause_shown=False)


def _os_error(error: Exception) -> Exception:
    if isinstance(error, NotImplementedError | AssertionError):
        return error
    hidden = redacted(error)
    return hidden if isinstance(hidden, OSError) else OSError(f"{type(error).__name__}: {hidden}")


def _time(info: dict[str, Any]) -> datetime | float | None:
    name = next((name for name in _TIMES if info.get(name) is not None), None)
    value = info[name] if name else None
    if name == "modificationTime":  # WebHDFS: in milliseconds
        return datetime.fromtimestamp(float(value) / 1000, tz=UTC)  # type: ignore[arg-type]
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return value


def open_fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    """File system and path of `uri`, which includes its credentials.

    Options after the `?` that are parameters of the file system are passed to it. If any is not, all are part of the
    name.
    """
    scheme = uri.partition("://")[0]
    known = inspect.signature(fsspec.get_filesystem_class(scheme).__init__).parameters
    bare, _, query = uri.partition("?")
    options = dict(option.partition("=")[::2] for option in query.split("&") if option)
    taken = {name: _value(value) for name, value in options.items()} if options.keys() <= known.keys() else {}
    filesystem, path = fsspec.core.url_to_fs(bare if taken else uri, **taken)
    return fs.PyFileSystem(Bridge(filesystem)), path


def _value(text: str) -> object:
    return {"true": True, "false": False}.get(text.lower(), unquote(text))


class AnsweredFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """An fsspec file system that raises where storage does not answer.

    fsspec's own methods return False then: an outage would look like a deleted file.
    """

    def exists(self, path: str, **_options: object) -> bool:
        return self._type(path) is not None

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None
