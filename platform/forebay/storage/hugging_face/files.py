"""Repositories of the Hugging Face Hub as an fsspec file system.

It is read-only, for the bridge to pyarrow.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from forebay.storage.fsspec_bridge import AnsweredFiles
from forebay.storage.hugging_face.repository import Repository, RepositoryPath, split_path
from forebay.storage.hugging_face.requests import HubRequests
from forebay.storage.range_reader import RangeReader

Facts = dict[str, Any]
Listing = dict[str, Facts]
_opened: dict[tuple[str, int], HubFiles] = {}


def open_hub(token: str = "") -> HubFiles:
    """Files of the Hub for a token.

    One object for a process, so that all its threads share what is known of commits.
    """
    # Keyed by process too: a forked child must not wait for a lock that a thread of its parent held.
    key = token, os.getpid()
    # Not lru_cache: threads that come first at once would each get their own.
    return _opened.get(key) or _opened.setdefault(key, HubFiles(token))


class HubFiles(AnsweredFiles):
    """Files of the Hub.

    Folders of a commit are listed once: they never change.
    """

    protocol = "hf"
    cachable = False

    def __init__(self, token: str = "") -> None:
        super().__init__()
        self._token = token
        self._requests = HubRequests(token)
        self._of_commits: dict[str, Listing] = {}
        # Held during a request: threads that need the same folder wait for one listing, not for one each.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return open_hub, (self._token,)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("hf://").strip("/")

    def commit_of(self, repository: Repository) -> str:
        """Commit that a revision is now, 40 hex digits."""
        path = f"{repository.api}/revision/{repository.revision.replace('/', '%2F')}"
        return str(self._requests.get(path).json()["sha"])

    def info(self, path: str, **_options: object) -> Facts:
        target = _split(self._strip_protocol(path))
        if not target.path:
            return {"name": target.repository.root, "size": 0, "type": "directory"}
        folder, _, _ = target.path.rpartition("/")
        name = f"{target.repository.root}/{target.path}"
        try:
            return self._listing(RepositoryPath(target.repository, folder))[name]
        except KeyError:
            raise FileNotFoundError(f"hf://{name}") from None

    def ls(self, path: str, detail: bool = True, **_options: object) -> list[Any]:
        target = _split(self._strip_protocol(path))
        found = self._listing(target)
        return list(found.values()) if detail else list(found)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_options: object
    ) -> Any:
        target = _split(self._strip_protocol(path))
        if not target.repository.is_commit:
            # A search above a repository names others: `datasets/org/_delta_log`. Listings begin at a commit.
            raise FileNotFoundError(f"hf://{_name(target)} is not of a commit")
        entries = self._listing(target) if maxdepth == 1 else self._tree(target, is_recursive=True)
        found = {name: entries[name] for name in sorted(entries) if withdirs or entries[name]["type"] == "file"}
        return found if detail else list(found)

    def open(self, path: str, mode: str = "rb", **_options: object) -> Any:
        if mode != "rb":
            raise PermissionError(f"hf://{self._strip_protocol(path)}: the Hub is only read. Write to another storage")
        target = _split(self._strip_protocol(path))
        return _HubFile(self._requests, target.repository.file(target.path), self.info(path)["size"])

    def _listing(self, target: RepositoryPath) -> Listing:
        """Entries of one folder."""
        if not target.repository.is_commit:
            return self._tree(target, is_recursive=False)
        name = _name(target)
        with self._lock:
            if name in self._of_commits:
                return self._of_commits[name]
            if target.path and self.info(name)["type"] != "directory":
                raise NotADirectoryError(f"hf://{name}")
            return self._tree(target, is_recursive=False)

    def _tree(self, target: RepositoryPath, *, is_recursive: bool) -> Listing:
        """Entries of a folder, or of all folders below it."""
        path = f"{target.repository.api}/tree/{target.repository.revision.replace('/', '%2F')}"
        answer = self._requests.get(
            f"{path}/{target.path}".rstrip("/"), params={"recursive": "true" if is_recursive else "false"}
        )
        entries: Listing = {}
        while True:
            for entry in answer.json():
                name = f"{target.repository.root}/{entry['path']}"
                entries[name] = _facts(name, entry)
            following = answer.links.get("next", {}).get("url")
            if not following:
                break
            answer = self._requests.get(following)
        if target.repository.is_commit:
            self._keep(_name(target), entries, is_recursive=is_recursive)
        return entries

    def _keep(self, folder: str, entries: Listing, *, is_recursive: bool) -> None:
        listings: dict[str, Listing] = {folder: {}}
        if is_recursive:
            listings |= {name: {} for name, facts in entries.items() if facts["type"] == "directory"}
        for name, facts in entries.items():
            listings.setdefault(name.rpartition("/")[0], {})[name] = facts
        self._of_commits |= listings


def _split(path: str) -> RepositoryPath:
    target = split_path(path)
    if target is None:
        raise FileNotFoundError(f"hf://{path} is above all repositories")
    return target


def _name(target: RepositoryPath) -> str:
    return f"{target.repository.root}/{target.path}".rstrip("/")


def _facts(name: str, entry: Facts) -> Facts:
    content = entry.get("lfs") or {}
    return {
        "name": name,
        "size": content.get("size", entry.get("size", 0)),
        "type": entry["type"],
        "etag": content.get("oid") or entry.get("oid", ""),
    }


class _HubFile(RangeReader):
    """An open file.

    Each read is one request for a range.
    """

    def __init__(self, requests: HubRequests, path: str, size: int) -> None:
        super().__init__(size)
        self._requests, self._path = requests, path

    def read_range(self, start: int, stop: int) -> bytes:
        answer = self._requests.get(self._path, {"Range": f"bytes={start}-{stop - 1}"})
        content: bytes = answer.content if answer.status_code == 206 else answer.content[start:stop]
        if len(content) != stop - start:
            raise OSError(f"{len(content)} of {stop - start} bytes came from byte {start} of {self._path} on")
        return content
