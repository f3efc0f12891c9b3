"""Paths and URIs to file systems: pyarrow's own first, fsspec for the rest."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import fsspec
import pyarrow as pa
from pyarrow import fs

from forebay.errors import InvalidOption, ReadFailed

ARROW_SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Location(NamedTuple):
    """A place in storage: `path` is its name within `fs`, `uri` its one spelling (an absolute path if it is local)."""

    fs: fs.FileSystem
    path: str
    uri: str

    @property
    def is_local(self) -> bool:
        """Whether `path` can be opened by the operating system."""
        return isinstance(self.fs, fs.LocalFileSystem)


def resolve(uri: str | os.PathLike[str]) -> Location:
    """The place that `uri` names, whether or not anything is there.

    Args:
        uri: A local path (relative ones are taken from the working directory, `~` is the home folder), `file://`, what
            pyarrow knows (`s3://`, `gs://`, `hdfs://`, `abfs://`, with its options after a `?`), or what fsspec knows.

    Raises:
        InvalidOption: An unknown scheme, or a URI that is malformed.
        ReadFailed: The file system itself cannot be reached.
    """
    if not isinstance(uri, str | os.PathLike):
        raise InvalidOption(f"{uri!r} names no place. Give a path or a URI.")
    text = os.fspath(uri)
    found = _SCHEME.match(text)
    if found is None or found[1].lower() == "file":
        named = Path(text).expanduser() if found is None else Path(_path_of_file_uri(text))
        # Not Path.resolve: a data set behind a link that is moved to the next version keeps its name.
        path = os.path.normpath(named.absolute())
        return Location(fs.LocalFileSystem(), path, path)
    scheme = found[1].lower()
    if scheme in ARROW_SCHEMES:
        parts = urlsplit(text)
        # Keyed by process too: the clients' own threads do not survive a fork.
        filesystem, prefix = _arrow_filesystem(scheme, parts.netloc, parts.query, os.getpid())
        return Location(filesystem, (prefix + unquote(parts.path.lstrip("/"))).rstrip("/") or "/", text)
    return _fsspec_location(text, scheme)


@lru_cache(maxsize=64)
def _arrow_filesystem(scheme: str, netloc: str, query: str, _pid: int) -> tuple[fs.FileSystem, str]:
    """A file system, and what its paths begin with (a bucket, a container, or `/`): found by asking for one path."""
    probe = "forebay-probe"
    uri = f"{scheme}://{netloc}/{probe}" + (f"?{query}" if query else "")
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except pa.ArrowInvalid as error:
        raise InvalidOption(f"{uri.replace(probe, '')} is not a URI that pyarrow takes: {error}", uri=uri) from error
    except OSError as error:
        raise ReadFailed(
            f"The file system of {uri.replace(probe, '')} cannot be opened: {error}. Check its address and "
            "credentials; hdfs:// also needs libhdfs and a JVM (HADOOP_HOME, JAVA_HOME, CLASSPATH).",
            uri=uri,
        ) from error
    return filesystem, path.removesuffix(probe)


def _fsspec_location(uri: str, scheme: str) -> Location:
    if scheme not in fsspec.available_protocols():
        raise InvalidOption(
            f"{uri}: no file system is known for {scheme}://. Use a local path, {', '.join(ARROW_SCHEMES)}, or one of "
            f"fsspec's: {', '.join(sorted(set(fsspec.available_protocols()) - set(ARROW_SCHEMES)))}.",
            scheme=scheme,
        )
    try:
        filesystem, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise InvalidOption(f"{uri}: {scheme}:// needs another package: {error}", scheme=scheme) from error
    return Location(fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path, uri)


def _path_of_file_uri(uri: str) -> str:
    """What follows `file://` or `file://localhost`; `?` and `#` may stand in the name of a file."""
    host, _, path = uri.partition("://")[2].partition("/")
    if host not in ("", "localhost"):
        raise InvalidOption(
            f"{uri!r} names the host {host!r}. A file URI is absolute: file:///{host}/... or a plain path.", uri=uri
        )
    return "/" + unquote(path)
