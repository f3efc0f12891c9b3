"""Folder that is complete once its last file is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pyarrow import fs

from forebay.errors import InvalidOption
from forebay.storage.atomic import read_small, write_atomically, write_failed
from forebay.storage.credentials import redacted, redacting
from forebay.storage.filesystem import below, resolve
from forebay.storage.globs import children

ORIGIN = "forebay.json"
"""First file: it says what the folder becomes."""


class SealedFolder:
    """Folder whose seal is written last.

    The first file holds `origin`, which describes the content.

    Readers of the folder need the seal, so without it nothing of the folder is used. A folder that was left without a
    seal is written again by the same export.
    """

    def __init__(self, uri: str, origin: Mapping[str, Any], seal: str) -> None:
        self._location, self._origin, self._seal_name = resolve(uri), dict(origin), seal

    @property
    def uri(self) -> str:
        """URI without credentials."""
        return self._location.uri

    def start(self) -> bool:
        """Prepare the folder for files.

        Returns False if it is complete, with the same origin.

        Raises `InvalidOption` for a folder with other content.
        """
        location = self._location
        if location.fs.get_file_info(location.path).type == fs.FileType.File:
            raise InvalidOption(f"{location.uri} is a file. Give a folder.", path=location.uri)
        names = {info.base_name for info in children(location.fs, location.path)}
        # A kill before the first file had its name leaves its draft.
        names = {name for name in names if not name.startswith(f".{ORIGIN}.")}
        if not names:
            location.fs.create_dir(location.path, recursive=True)
            self.write(ORIGIN, json.dumps(self._origin, indent=1).encode())
            return True
        found = self._found() if ORIGIN in names else None
        if found != self._origin:
            is_whole = "" if found is None or self._seal_name in names else ", which is not complete"
            raise InvalidOption(
                f"{location.uri} holds {_text(found) or ', '.join(sorted(names)[:5])}{is_whole}, and this would be "
                f"{_text(self._origin)}. Give another folder, or remove that one.",
                path=location.uri,
            )
        return self._seal_name not in names

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        write_atomically(below(self._location.uri, name), content)

    @contextmanager
    def stream(self, name: str) -> Iterator[IO[bytes]]:
        """Open a large file for writing.

        It is on the disk at the end of the block.
        """
        path = f"{self._location.path}/{name}"
        with redacting(), self._location.fs.open_output_stream(path) as out:
            yield out
        if self._location.is_local:
            # The seal must not reach the disk before the weights.
            with Path(path).open("rb") as written:
                os.fsync(written.fileno())

    def seal(self, content: bytes) -> None:
        """Write the seal: the folder is complete."""
        self.write(self._seal_name, content)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raise `WriteFailed` where storage refuses a write."""
        try:
            yield
        except OSError as error:
            raise write_failed(_text(self._origin), self.uri, error) from redacted(error)

    def _found(self) -> Mapping[str, Any] | None:
        content = read_small(self._location.child(ORIGIN))
        try:
            found = json.loads(content)
        except ValueError:
            return None
        return found if isinstance(found, Mapping) else None


def _text(origin: Mapping[str, Any] | None) -> str:
    if origin is None:
        return ""
    content, step, run, dtype = (origin.get(name) for name in ("content", "step", "run", "dtype"))
    return f"the {content} of step {step} of run {run!r} in {dtype}"
