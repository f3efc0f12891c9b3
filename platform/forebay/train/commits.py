"""The commits of one run in storage. A commit counts once it is sealed; a torn one is never restored."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import xxhash
from pyarrow.fs import FileType

from forebay.errors import CursorMismatch, InvalidOption
from forebay.plan.cursor import Cursor
from forebay.storage.credentials import redacting
from forebay.storage.filesystem import resolve
from forebay.storage.globs import children
from forebay.storage.retry import ReadPolicy, read
from forebay.train.loadable import LoadableTypes
from forebay.world import World

VERSION = 2
STATE, SEAL = "state.pt", "commit.json"
STEP_FORM = re.compile(r"step-(\d{9,})")

# A state of many gigabytes takes minutes.
READ_POLICY = ReadPolicy(deadline_s=900.0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A checkpoint: where the data stands, and all state that training from there needs.

    `world` is the one that saved it; any other may restore it. `state` holds tensors, numbers, strings, None, and
    tuples, lists and dicts of these.
    """

    step: int
    cursor: Cursor
    world: World
    state: Mapping[str, Any] = field(repr=False)


class CommitDirectory:
    """Commits below `uri`, one folder per step: `state.pt`, then the seal `commit.json` with size and checksum.

    Only rank 0 writes. There is no fsync: what a crash of the machine tears, the checksum finds, and the commit before
    it is still there. Raises `InvalidOption` for `keep_last < 1`.
    """

    def __init__(self, uri: str | os.PathLike[str], *, keep_last: int = 2) -> None:
        if keep_last < 1:
            raise InvalidOption(f"keep_last={keep_last} would keep no commit to resume from. Keep 1 or more.")
        self._place = resolve(uri)
        self._fs = self._place.fs
        self._keep_last = keep_last
        self._loadable = LoadableTypes()

    def save(self, commit: Commit) -> None:
        """Write `commit`, seal it, then delete what it supersedes: all but the newest `keep_last`, and later steps.

        Later steps can only be left from a future that was given up by going back. Raises `BadJob` for a state that
        could not be read back.
        """
        buffer = io.BytesIO()
        torch.save(dict(commit.state), buffer)
        self._loadable.check(commit.state, buffer)
        state = buffer.getbuffer()
        folder = self._folder(commit.step)
        if self._fs.get_file_info(folder).type != FileType.NotFound:
            self._delete(commit.step)
        self._fs.create_dir(folder, recursive=True)
        header = {
            "version": VERSION,
            "step": commit.step,
            "cursor": commit.cursor.to_json(),
            "world": asdict(commit.world),
            "state_bytes": len(state),
        }
        self._write(f"{folder}/{STATE}", state)
        seal = header | {"xxh3_128": _checksum(header, state)}
        self._write(f"{folder}/{SEAL}", json.dumps(seal, indent=1).encode())
        self._retain(commit.step)

    def newest(self) -> Commit | None:
        """The newest commit that is whole, or None; those that are torn are logged and passed over.

        Raises:
            CursorMismatch: It was written by another release of Forebay, in a form this one does not read.
            ReadFailed: Storage does not answer; going back to an older commit would then be wrong.
        """
        for step in self._steps():
            try:
                return self._load(step)
            except _TornError as torn:
                log.warning("The commit of step %d is not whole (%s); looking for the one before it.", step, torn)
        return None

    def _load(self, step: int) -> Commit:
        header = _parse_seal(self._read(step, SEAL))
        if header.get("version", VERSION) != VERSION:
            raise CursorMismatch(
                f"The commit in {self._place.uri}/{_name(step)} has version {header['version']}; this release reads "
                f"version {VERSION}. Use the Forebay that wrote it, or give the run a new name.",
                step=step,
            )
        state = self._read(step, STATE)
        checksum = header.pop("xxh3_128", None)
        if len(state) != header.get("state_bytes"):
            raise _TornError(f"{STATE} has {len(state)} bytes, the seal says {header.get('state_bytes')}")
        if checksum != _checksum(header, state):
            raise _TornError("its checksum is wrong")
        return self._rebuild(step, header, state)

    def _rebuild(self, step: int, header: Mapping[str, Any], state: bytes) -> Commit:
        """What the sealed facts and bytes stand for. An older commit would be no better, so none is looked for."""
        try:
            found = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
            world = World(**header["world"])
            cursor = Cursor.from_json(header["cursor"])
            if header["step"] != step or not isinstance(found, dict):
                raise ValueError(f"it is of step {header['step']}, or holds no state")
        except Exception as error:  # unpicklers raise anything
            raise CursorMismatch(
                f"The commit in {self._place.uri}/{_name(step)} is whole, but this release cannot read it "
                f"({str(error).partition(chr(10))[0]:.200}). Use the Forebay and the PyTorch that wrote it, or give "
                "the run a new name.",
                step=step,
            ) from error
        return Commit(step=step, cursor=cursor, world=world, state=found)

    def _retain(self, newest: int) -> None:
        for step in [step for step in self._steps() if step > newest]:
            self._delete(step)
        sealed = [step for step in self._steps() if self._exists(f"{self._folder(step)}/{SEAL}")]
        for step in set(self._steps()) - set(sealed[: self._keep_last]):
            self._delete(step)

    def _steps(self) -> list[int]:
        """Steps that have a folder, newest first."""
        found = children(self._fs, self._place.path)
        names = [STEP_FORM.fullmatch(info.base_name) for info in found if info.type == FileType.Directory]
        return sorted((int(name[1]) for name in names if name), reverse=True)

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
            return read(f"{self._place.uri}/{_name(step)}/{name}", lambda: self._contents(path), READ_POLICY)
        except FileNotFoundError:
            raise _TornError(f"it has no {name}") from None

    def _contents(self, path: str) -> bytes:
        with self._fs.open_input_stream(path) as stream:
            return bytes(stream.read())

    def _write(self, path: str, contents: bytes | memoryview) -> None:
        with redacting(), self._fs.open_output_stream(path) as stream:
            stream.write(contents)

    def _folder(self, step: int) -> str:
        return f"{self._place.path}/{_name(step)}"


class _TornError(Exception):
    """Why a commit cannot be trusted."""


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _parse_seal(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise _TornError(f"{SEAL} is cut short") from None
    if not isinstance(header, dict):
        raise _TornError(f"{SEAL} holds no facts")
    return header


def _checksum(header: Mapping[str, Any], state: bytes | memoryview) -> str:
    """Over the seal's facts too: a cursor with one flipped digit would resume in the wrong place."""
    digest = xxhash.xxh3_128(json.dumps(header, sort_keys=True).encode())
    digest.update(state)
    return digest.hexdigest()
