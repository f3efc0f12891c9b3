"""Shell patterns over any file system.

They are expanded one folder level at a time: only matching folders are listed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate

from pyarrow import fs

from forebay.errors import InvalidOption

_MAGIC = re.compile(r"[*?\[]")

Listed = Callable[[str, list[fs.FileInfo]], None]
"""Called with each folder that a pattern lists, and its entries, including hidden ones."""

OnLink = Callable[[str, str], None]
"""Called with a local link that is not entered, and the path under which its folder is listed."""


def is_hidden(name: str) -> bool:
    """Whether datasets exclude this name.

    Hadoop, Spark and Unix hide such names: `_SUCCESS`, `_temporary`, `.crc`.
    """
    return name.startswith(("_", "."))


def is_hidden_folder(name: str) -> bool:
    """Whether datasets exclude a folder of this name.

    `_day=1` is a partition of the column `_day`, for Spark too.
    """
    return is_hidden(name) and "=" not in name


def is_hidden_path(path: str) -> bool:
    """Whether a file or any folder of the relative `path` is hidden."""
    *folders, name = path.split("/")
    return is_hidden(name) or any(map(is_hidden_folder, folders))


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
                if matches(info.base_name) and (not _is_hidden_entry(info) or not is_pattern(segment))
            )


def walk(filesystem: fs.FileSystem, folder: str) -> Iterator[fs.FileInfo]:
    """List everything below `folder` but hidden names."""
    return visible(everything(filesystem, folder), folder)


def visible(infos: Iterable[fs.FileInfo], folder: str) -> Iterator[fs.FileInfo]:
    """Entries whose path below `folder` is without hidden names."""
    skip = len(folder.rstrip("/")) + 1
    return (
        info
        for info in infos
        if not _is_hidden_entry(info) and not any(map(is_hidden_folder, info.path[skip:].split("/")[:-1]))
    )


def _is_hidden_entry(info: fs.FileInfo) -> bool:
    is_folder = info.type == fs.FileType.Directory
    return is_hidden_folder(info.base_name) if is_folder else is_hidden(info.base_name)


def children(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """Files and folders directly in `folder`.

    Empty if the folder does not exist.
    """
    if getattr(filesystem, "type_name", "") == "gcs":
        # On Google Cloud, pyarrow 26 lists a folder only if an object of its name marks it (apache/arrow issue 35993).
        skip = len(folder.rstrip("/")) + 1
        return [info for info in everything(filesystem, folder) if "/" not in info.path[skip:]]
    if isinstance(filesystem, fs.LocalFileSystem):
        return [_local_info(entry) for entry in _local_entries(folder)]
    found: list[fs.FileInfo] = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return found


def everything(filesystem: fs.FileSystem, folder: str, on_link: OnLink = lambda *_: None) -> Iterable[fs.FileInfo]:
    """List everything below `folder`.

    Includes folders that exist only in the names of objects. A local folder is listed once, however many links lead to
    it, and under its own path if that is below `folder`. A link to nowhere is of the type `NotFound`.
    """
    if isinstance(filesystem, fs.LocalFileSystem):
        return _local_tree(folder, on_link)
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


def _local_tree(root: str, on_link: OnLink) -> list[fs.FileInfo]:
    found: list[fs.FileInfo] = []
    path_of: dict[tuple[int, int], str] = {}  # of the visible folders, by device and inode
    open_folders = [root]
    links: list[str] = []
    hidden: list[str] = []
    while open_folders or links:
        # Links last: what is also below the root itself is listed under its own path.
        is_link = not open_folders
        folder = links.pop(0) if is_link else open_folders.pop()
        try:
            status = os.stat(folder)  # noqa: PTH116 - a path takes as long as the call
        except FileNotFoundError:  # since its parent was listed
            continue
        known = path_of.setdefault((status.st_dev, status.st_ino), folder)
        if known != folder:
            on_link(folder, known)
            continue
        for entry in _local_entries(folder):
            found.append(_local_info(entry))
            if found[-1].type == fs.FileType.Directory:
                is_hidden_one = is_hidden_folder(entry.name)
                (hidden if is_hidden_one else links if entry.is_symlink() else open_folders).append(entry.path)
    while hidden:
        # The logs of tables are in hidden folders. No link is followed there.
        for entry in _local_entries(hidden.pop()):
            found.append(_local_info(entry))
            if entry.is_dir(follow_symlinks=False):
                hidden.append(entry.path)
    return found


def _local_entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _local_info(entry: os.DirEntry[str]) -> fs.FileInfo:
    try:
        entry.path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(entry.path).decode(errors="backslashreplace")
        raise InvalidOption(
            f"{shown}: this name is no UTF-8, so neither Arrow nor a manifest can hold it. Rename it, or move it out "
            "of the folder.",
            path=shown,
        ) from None
    try:
        status = entry.stat()
    except FileNotFoundError:
        return fs.FileInfo(entry.path, type=fs.FileType.NotFound)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return fs.FileInfo(entry.path, type=fs.FileType.NotFound)
    if stat.S_ISDIR(status.st_mode):
        return fs.FileInfo(entry.path, type=fs.FileType.Directory, mtime_ns=status.st_mtime_ns)
    kind = fs.FileType.File if stat.S_ISREG(status.st_mode) else fs.FileType.Unknown
    return fs.FileInfo(entry.path, type=kind, mtime_ns=status.st_mtime_ns, size=status.st_size)
