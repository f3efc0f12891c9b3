"""Files left out by a listing, and the links it followed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath

from pyarrow import fs

from forebay.storage.globs import is_hidden_path


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files that a listing did not take, by path.

    `others` are files of other suffixes, `hidden` Parquet files below or with a name that begins with `_` or `.`, `odd`
    what is neither file nor folder (pipes, sockets), `twins` links to what is listed under another name. `followed`
    are links that were followed, and where they lead.
    """

    others: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    odd: set[str] = field(default_factory=set)
    twins: dict[str, str] = field(default_factory=dict)
    followed: dict[str, str] = field(default_factory=dict)

    def add(self, infos: Iterable[fs.FileInfo], folder: str, suffixes: tuple[str, ...]) -> None:
        """Add what is not taken of the entries below `folder`."""
        skip = len(folder.rstrip("/")) + 1
        for info in infos:
            is_hidden = is_hidden_path(info.path[skip:])
            if info.type == fs.FileType.Unknown and not is_hidden:
                self.odd.add(info.path)
            elif info.type != fs.FileType.File:
                continue
            elif is_hidden and info.path.endswith(suffixes):
                self.hidden.add(info.path)
            elif not is_hidden and not info.path.endswith(suffixes):
                self.others.add(info.path)

    def update(self, other: LeftOut, taken: Iterable[str]) -> None:
        """Add files left out by another listing, except `taken` ones."""
        for name in ("others", "hidden", "odd"):
            getattr(self, name).update(getattr(other, name).difference(taken))
        self.twins.update(other.twins)
        self.followed.update(other.followed)

    def notes(self) -> tuple[str, ...]:
        """Sentences about all of it."""
        found = []
        if self.others:
            found.append(f"left out: {_files(self.others)} of other suffixes ({suffix_counts(self.others)})")
        if self.hidden:
            found.append(
                f"left out: {_files(self.hidden)} with hidden names, that begin with _ or . ({_one(self.hidden)})"
            )
        if self.odd:
            found.append(f"left out: {len(self.odd)} that are no files ({_one(self.odd)})")
        if self.twins:
            found.append(
                f"left out: {_links(self.twins)} to what is listed under another name ({_one_link(self.twins)})"
            )
        if self.followed:
            found.append(f"followed: {_links(self.followed)} ({_one_link(self.followed)})")
        return tuple(found)


def suffix_counts(paths: Iterable[str]) -> str:
    """Numbers of files by suffix, the most frequent first.

    >>> suffix_counts(["a.csv", "b/c.csv", "d", "e.parquet.gz"])
    '.csv 2, none 1, .parquet.gz 1'
    """
    counts = Counter(_suffix(path) or "none" for path in paths)
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0] != "none", item[0]))
    rest = sum(count for _, count in most[5:])
    return ", ".join(f"{suffix} {count}" for suffix, count in most[:5]) + (f", others {rest}" if rest else "")


def _suffix(path: str) -> str:
    name = path.rpartition("/")[2]
    _, mark, after = name.partition(".parquet.")
    return mark + after if mark else PurePath(name).suffix


def _files(paths: Iterable[str]) -> str:
    count = len(list(paths))
    return f"{count} file{'s' if count > 1 else ''}"


def _links(links: dict[str, str]) -> str:
    return f"{len(links)} link{'s' if len(links) > 1 else ''}"


def _one(paths: set[str]) -> str:
    return ("e.g. " if len(paths) > 1 else "") + min(paths)


def _one_link(links: dict[str, str]) -> str:
    path = min(links)
    return ("e.g. " if len(links) > 1 else "") + f"{path} -> {links[path]}"


class RealPaths:
    """Real paths and links of local files below a root.

    Computed once a folder.
    """

    def __init__(self, root: str) -> None:
        real = os.path.realpath(root)
        self._folders = {root.rstrip("/"): real.rstrip("/")}
        self.followed: dict[str, str] = {}

    def is_direct(self, path: str) -> bool:
        """Whether no link below the root is on the way."""
        return not any(f"{path}/".startswith(f"{link}/") for link in self.followed)

    def of(self, path: str) -> str:
        """Real path of a file or folder below the root."""
        if path in self._folders:
            return self._folders[path]
        parent, _, name = path.rpartition("/")
        if not parent and not name:
            return ""
        real = f"{self._folder(parent)}/{name}"
        if os.path.islink(path):  # noqa: PTH114 - a path takes as long as the call
            real = os.path.realpath(path)
            self.followed[path] = real
        return real

    def _folder(self, path: str) -> str:
        if path not in self._folders:
            self._folders[path] = self.of(path)
        return self._folders[path]
