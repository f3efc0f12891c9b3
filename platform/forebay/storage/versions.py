"""Which version of a file is there: size and time of the last change, and the store's own name for it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from forebay.storage.filesystem import Location, resolve_source
from forebay.storage.fsspec_bridge import ETAGS, Bridge


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """One file and its version; `mtime_ns` is 0 where the store keeps no time, `etag` empty where it names no versions.

    Object stores keep whole seconds (S3, Azure): two versions of one size within a second differ in their `etag` alone.
    """

    uri: str
    size: int
    mtime_ns: int
    etag: str = ""


def stat(uri: str | os.PathLike[str]) -> FoundFile:
    """The size and time with which a file is there now. Raises `FileNotFoundError`, or the file system's own error."""
    location = resolve_source(uri)
    info = location.fs.get_file_info(location.path)
    if info.type != fs.FileType.File:
        raise FileNotFoundError(
            f"{location.uri} is {'a folder' if info.type == fs.FileType.Directory else 'not there'}"
        )
    return found(location.uri, info)


def stat_etag(uri: str) -> str:
    """The `etag` of the version that is there now, for one request; empty where the store names no versions."""
    location = resolve_source(uri)
    if location.is_local:
        return ""
    if isinstance(location.fs, fs.PyFileSystem):
        return _bridged_etag(location)
    with location.fs.open_input_file(location.path) as opened:
        return etag_of(location, opened)


def etag_of(location: Location, opened: pa.NativeFile) -> str:
    """The `etag` of the version that was opened. Opening has asked for it; only fsspec is asked once more."""
    if location.is_local:
        return ""
    if isinstance(location.fs, fs.PyFileSystem):
        return _bridged_etag(location)
    facts = opened.metadata()
    return next((facts[name].decode().strip('"') for name in ETAGS if facts.get(name)), "")


def found(uri: str, info: fs.FileInfo) -> FoundFile:
    """What a listing says of a file; listings of pyarrow hold no `etag`."""
    return FoundFile(uri=uri, size=info.size, mtime_ns=info.mtime_ns or 0)


def _bridged_etag(location: Location) -> str:
    bridge = location.fs.handler
    return bridge.etag(location.path) if isinstance(bridge, Bridge) else ""
