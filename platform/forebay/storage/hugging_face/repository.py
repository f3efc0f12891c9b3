"""Repositories of the Hugging Face Hub, from `hf://` URIs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from forebay.errors import InvalidOption

SCHEME = "hf"
_KINDS = ("datasets", "models", "spaces")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Branches of the Hub whose names have a slash.
_REVISION = re.compile(r"(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+)(?:/(?P<path>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Repository:
    """A revision of a repository.

    It is a branch, a tag, or a commit of 40 hex digits, whose files never change.
    """

    kind: str
    name: str
    revision: str

    @property
    def is_commit(self) -> bool:
        """Whether the revision can never change."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def root(self) -> str:
        """Name of the repository in a path.

        Such as `datasets/org/name@main`.
        """
        kind = "" if self.kind == "models" else f"{self.kind}/"
        return f"{kind}{self.name}@{quote(self.revision, safe='')}"

    @property
    def api(self) -> str:
        """Path of its API below the endpoint."""
        return f"/api/{self.kind}/{self.name}"

    def file(self, path: str) -> str:
        """Path of a file of the repository below the endpoint."""
        kind = "" if self.kind == "models" else f"{self.kind}/"
        return f"/{kind}{self.name}/resolve/{quote(self.revision, safe='')}/{quote(path)}"


class RepositoryPath(NamedTuple):
    """A file or folder in a repository. The root is empty."""

    repository: Repository
    path: str


def split_path(path: str) -> RepositoryPath | None:
    """Repository and path of `datasets/org/name@revision/folder`.

    None for a folder above all repositories.

    >>> split_path("datasets/org/name/a/b.parquet")
    RepositoryPath(repository=Repository(kind='datasets', name='org/name', revision='main'), path='a/b.parquet')
    >>> split_path("org/name@refs%2Fpr%2F1/a").repository.revision
    'refs/pr/1'
    """
    parts = path.strip("/").split("/")
    kind = parts.pop(0) if parts[0] in _KINDS else "models"
    if len(parts) < 2:
        return None
    owner, rest = parts[0], "/".join(parts[1:])
    name, mark, after = rest.partition("@")
    if not mark or "/" in name:
        name, _, inner = rest.partition("/")
        return RepositoryPath(Repository(kind, f"{owner}/{name}", "main"), inner.strip("/"))
    match = _REVISION.fullmatch(after)
    if match is None:
        raise InvalidOption(f"hf://{path} has no revision after the @. Name a branch, a tag or a commit.")
    return RepositoryPath(
        Repository(kind, f"{owner}/{name}", unquote(match["revision"])), (match["path"] or "").strip("/")
    )


def names_repository(path: str) -> bool:
    """Whether a path is in a repository.

    The commits of a repository can be pinned. A bucket has none. The path is without its scheme.
    """
    return not path.startswith("buckets/")
