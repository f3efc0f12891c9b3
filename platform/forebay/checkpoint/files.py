"""Sealed commits in storage, one folder per step. Knows nothing of what is in them, so it needs no PyTorch."""

from __future__ import annotations

import re

from pyarrow.fs import FileType

from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import SEAL, STATE, VERSION, Bytes, CorruptCheckpoint, EncodedCheckpoint, facts_of
from forebay.errors import CursorMismatch
from forebay.storage.credentials import redacting
from forebay.storage.filesystem import resolve
from forebay.storage.globs import children
from forebay.storage.retry import ReadPolicy, read

STEP_FORM = re.compile(r"step-(\d{9,})")

# A state of many gigabytes takes minutes.
READ_POLICY = ReadPolicy(deadline_s=900.0)


class CheckpointFiles:
    """`state.pt` and then its seal `commit.json` in a folder per step: what has no seal was never finished.

    One process writes at a time, but for a store that is about to be succeeded and the one that succeeds it: a write
    deletes no later step that came while it was under way. There is no fsync: what a crash of the machine tears, the
    checksum finds, and the commit before it is still there.
    """

    def __init__(self, safekeeping: CheckpointConfig) -> None:
        self._safekeeping = safekeeping
        self._place = resolve(safekeeping.uri)
        self._fs = self._place.fs

    @property
    def uri(self) -> str:
        """The folder's name, without credentials."""
        return self._place.uri

    @property
    def is_local(self) -> bool:
        """Whether it is on a file system of this machine."""
        return self._place.is_local

    def write(self, sealed: EncodedCheckpoint) -> None:
        """Write a commit, seal it, then delete what it supersedes, later steps among it. Raises `OSError`."""
        there_before = set(self.steps())
        folder = self._folder(sealed.step)
        if self._fs.get_file_info(folder).type != FileType.NotFound:
            self._delete(sealed.step)
        self._fs.create_dir(folder, recursive=True)
        self._write(f"{folder}/{STATE}", sealed.state)
        self._write(f"{folder}/{SEAL}", sealed.seal)
        self._retain(sealed.step, there_before)

    def read(self, step: int) -> EncodedCheckpoint:
        """A commit as it was written, its checksum not looked at.

        Raises `CorruptCheckpoint` for one that lacks a part, `ReadFailed` if storage does not answer, and
        `CursorMismatch` for one of another release.
        """
        facts = facts_of(self._read(step, SEAL))
        if facts.get("version", VERSION) != VERSION:
            raise CursorMismatch(
                f"The commit in {self.title(step)} has version {facts['version']}; this release reads version "
                f"{VERSION}. Use the Forebay that wrote it, or give the run a new name.",
                step=step,
            )
        return EncodedCheckpoint(facts=facts, state=self._read(step, STATE))

    def steps(self) -> list[int]:
        """Steps that have a folder, newest first."""
        try:
            found = children(self._fs, self._place.path)
        except FileNotFoundError:  # pyarrow looks twice: it was made in between, and is as good as empty
            return []
        names = [STEP_FORM.fullmatch(info.base_name) for info in found if info.type == FileType.Directory]
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def sealed_steps(self) -> list[int]:
        """Steps that were written to the end, newest first; one that a crash tore since may be among them."""
        return [step for step in self.steps() if self._exists(f"{self._folder(step)}/{SEAL}")]

    def title(self, step: int) -> str:
        """The URI of a commit, for messages."""
        return f"{self.uri}/{_name(step)}"

    def _retain(self, newest: int, there_before: set[int]) -> None:
        # Later ones first: while they are there, they would be taken for the newest.
        steps = self.steps()
        sealed = [step for step in steps if step <= newest and self._exists(f"{self._folder(step)}/{SEAL}")]
        later_or_torn = (set(steps) - set(sealed)) & there_before
        superseded = self._safekeeping.superseded(sealed, newest) | later_or_torn
        for step in sorted(superseded, reverse=True):
            self._delete(step)

    def _delete(self, step: int) -> None:
        folder = self._folder(step)
        # The seal goes first: a deletion that is cut short must leave a torn commit, not a whole-looking one.
        if self._exists(f"{folder}/{SEAL}"):
            self._fs.delete_file(f"{folder}/{SEAL}")
        self._fs.delete_dir(folder)

    def _exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type == FileType.File)

    def _read(self, step: int, name: str) -> bytes:
        path = f"{self._folder(step)}/{name}"
        try:
            return read(f"{self.title(step)}/{name}", lambda: self._contents(path), READ_POLICY)
        except FileNotFoundError:
            raise CorruptCheckpoint(f"it has no {name}") from None

    def _contents(self, path: str) -> bytes:
        with self._fs.open_input_stream(path) as stream:
            return bytes(stream.read())

    def _write(self, path: str, contents: Bytes) -> None:
        with redacting(), self._fs.open_output_stream(path) as stream:
            stream.write(contents)

    def _folder(self, step: int) -> str:
        return f"{self._place.path}/{_name(step)}"


def _name(step: int) -> str:
    return f"step-{step:09d}"
