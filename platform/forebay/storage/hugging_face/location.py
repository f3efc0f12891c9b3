"""Opens `hf://`, and pins its revisions to commits."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

from forebay.errors import ReadFailed
from forebay.storage.credentials import granted, without_credentials
from forebay.storage.hugging_face.files import HubFiles, open_hub
from forebay.storage.hugging_face.repository import SCHEME, Repository, names_repository, split_path
from forebay.storage.retry import REMEDY, ReadPolicy, read


def open_repository(public: str) -> tuple[HubFiles, str]:
    """Files of the Hub for a URI, and its path.

    The URI is without credentials. Raises `InvalidOption`.
    """
    path = public.partition("://")[2].partition("?")[0].strip("/")
    return open_hub(granted(public).option("token")), path


class RevisionPins:
    """Commits of the revisions that one listing reads.

    Each is asked for once, so all its files are of one commit.
    """

    def __init__(self, policy: ReadPolicy) -> None:
        self._policy = policy
        self._commits: dict[Repository, str] = {}

    def pin(self, uri: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Replace the branch or tag of `uri` by its present commit.

        Other URIs, and those with a commit, are unchanged.

        Raises:
            InvalidOption: huggingface_hub is not installed.
            ReadFailed: The repository does not exist, or the Hub did not answer, or did not permit it.
        """
        if not isinstance(uri, str):
            return uri
        scheme, _, rest = uri.partition("://")
        found = split_path(rest.partition("?")[0]) if scheme.lower() == SCHEME and names_repository(rest) else None
        if found is None or found.repository.is_commit:
            return uri
        public = without_credentials(uri)
        files, _ = open_repository(public)
        repository = found.repository
        if repository not in self._commits:
            try:
                self._commits[repository] = read(public, partial(files.commit_of, repository), self._policy)
            except (FileNotFoundError, PermissionError) as error:
                raise ReadFailed(f"{public} has no commit to read ({error}). {REMEDY}", what=public) from error
        commit = replace(repository, revision=self._commits[repository])
        query = public.partition("?")[1] + public.partition("?")[2]
        return f"{SCHEME}://{commit.root}/{found.path}".rstrip("/") + query
