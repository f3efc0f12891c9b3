"""Shell patterns over any file system.

They are expanded one folder level at a time: only matching folders are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate

from pyarrow import fs

_MAGIC = re.compile(r"[*?\[]")

Listed = Callable[[str, list[fs.FileInfo]], None]
"""Called with each folder that a pattern lists, and its entries, including hidden ones."""


def is_hidden(name: str) -> bool:
    """Whether datasets exclude this name.

    Hadoop, Spark and Unix hide such names: `_SUCCESS`, `_temporary`, `.crc`.
    """
    return name.startswith(("_", "."))


def is_pattern(path: str) -> bool:
    """Whether any part of `path` has a wildcard."""
    return _MAGIC.search(path) is not None


def fixed_part(path: str) -> str:
    """Folder that a pattern starts from.

    All segments before the first one with a wildcard.

    >>> fixed_part("data/day=*/a.parquet")
    'data'
    """
    segments = path.split("/")
    first = next(index for index, segment in enumerate(segments) if is_pattern(segment))
    return "/".join(segments[:first]) or ("/" if path.startswith("/") else "")


def expand(filesystem: fs.FileSystem, pattern: str, on_listed: Listed = lambda *_: None) -> list[fs.FileInfo]:
    """Files and folders that match `pattern`.

    `*`, `?` and `[...]` stand for parts of a name, `**` for any number of folders.

    Calls `on_listed` for each folder that is listed on the way. An exception from it ends the search.
    """
    base = fixed_part(pattern)
    found = [fs.FileInfo(base, type=fs.FileType.Directory)]
    for segment in pattern[len(base) :].strip("/").split("/"):
        folders = [info for info in found if info.type == fs.FileType.Directory]
        found = list(_once(_step(filesystem, folders, segment, on_listed)))
    return found


def _step(
    filesystem: fs.FileSystem, folders: list[fs.FileInfo], segment: str, on_listed: Listed
) -> Iterator[fs.FileInfo]:
    matches = re.compile(translate(segment)).match
    for folder in folders:
        listed = list(everything(filesystem, folder.path) if segment == "**" else children(filesystem, folder.path))
        on_listed(folder.path, listed)
        if segment == "**":
            yield folder
            yield from (info for info in visible(listed, folder.path) if info.type == fs.FileType.Directory)
        else:
            yield from (
                info
                for info in listed
                if matches(info.base_name) and (not is_hidden(info.base_name) or not is_pattern(segment))
            )


def walk(filesystem: fs.FileSystem, folder: str) -> Iterator[fs.FileInfo]:
    """List everything below `folder` but hidden names."""
    return visible(everything(filesystem, folder), folder)


def visible(infos: Iterable[fs.FileInfo], folder: str) -> Iterator[fs.FileInfo]:
    """Entries whose path below `folder` has no hidden name."""
    skip = len(folder.rstrip("/")) + 1
    return (info for info in infos if not any(is_hidden(name) for name in info.path[skip:].split("/")))


def children(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """Files and folders directly in `folder`.

    Empty if the folder does not exist.
    """
    if getattr(filesystem, "type_name", "") == "gcs":
        # On Google Cloud, pyarrow 26 lists a folder only if an object of its name marks it (apache/arrow issue 35993).
        skip = len(folder.rstrip("/")) + 1
        return [info for info in everything(filesystem, folder) if "/" not in info.path[skip:]]
    found: list[fs.FileInfo] = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return found


def everything(filesystem: fs.FileSystem, folder: str) -> Iterable[fs.FileInfo]:
    """List everything below `folder`.

    Includes folders that exist only in the names of objects.
    """
    found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    skip = len(folder.rstrip("/")) + 1
    folders = {f"{info.path[:skip]}{up}" for info in found for up in _folders_of(info.path[skip:])}
    missing = folders - {info.path for info in found}
    return [*found, *(fs.FileInfo(path, type=fs.FileType.Directory) for path in sorted(missing))]


def _folders_of(path: str) -> Iterator[str]:
    """Parent folders of a relative path.

    `a/b` and `a` for `a/b/c`.
    """
    while path := path.rpartition("/")[0]:
        yield path


def _once(infos: Iterable[fs.FileInfo]) -> Iterable[fs.FileInfo]:
    return {info.path: info for info in infos}.values()
