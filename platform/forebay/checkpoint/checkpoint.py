"""The commits of one run: what they are, and where a worker saves them and finds them again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

from forebay.checkpoint.buffer import ReusableBuffer
from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import CorruptCheckpoint, EncodedCheckpoint
from forebay.checkpoint.files import CheckpointFiles
from forebay.checkpoint.serialization import LoadableTypes, pack, unpack
from forebay.errors import CursorMismatch
from forebay.plan.cursor import Cursor
from forebay.world import World

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint: where the data stands, and all state that training from there needs.

    `world` is the one that saved it; any other may restore it. `state` holds tensors, numbers, strings, None, and
    tuples, lists and dicts of these.
    """

    step: int
    cursor: Cursor
    world: World
    state: Mapping[str, Any] = field(repr=False)


class CheckpointStore(Protocol):
    """Where rank 0 keeps the commits of its run; made by a driver, once per worker process.

    Laws: what `save` has returned for is found by `newest` in any later process of the run, whatever becomes of this
    one; a commit that is saved replaces those of later steps, which are left from a future that was given up; `newest`
    never gives a torn commit; a saved state may be changed as soon as `save` has returned. All methods are called on
    rank 0, one at a time, though on threads of their own; making one costs the other ranks nothing.
    """

    def save(self, commit: Checkpoint) -> None:
        """Return once `commit` outlives this process. Raises `BadJob` for a state that could not be read back."""

    def newest(self) -> Checkpoint | None:
        """The newest commit that is whole, in memory or in storage; None where there is none.

        Raises:
            CursorMismatch: It was written by another release of Forebay, in a form this one does not read.
            ReadFailed: Storage does not answer; going back to an older commit would then be wrong.
        """
        ...

    def flush(self) -> None:
        """Return once the newest saved commit is in storage. Raises `WriteFailed` where it cannot get there."""

    def close(self) -> None:
        """Let go of what was opened. Saves nothing: `flush` does."""


class Encoder:
    """Makes commits into bytes that can be made into commits again."""

    def __init__(self) -> None:
        self._loadable = LoadableTypes()

    def seal(self, commit: Checkpoint, pad: ReusableBuffer) -> EncodedCheckpoint:
        """`commit` on `pad`, good until the pad is written again. Raises `BadJob` if it could not be read back."""
        state = pack(commit.state, pad)
        self._loadable.check(commit.state, state)
        facts = {"step": commit.step, "cursor": commit.cursor.to_json(), "world": asdict(commit.world)}
        return EncodedCheckpoint.close(facts, state)


def opened(sealed: EncodedCheckpoint, title: str) -> Checkpoint:
    """The commit that was sealed; `title` says where it was found.

    Raises `CorruptCheckpoint` if it is not whole, and `CursorMismatch` if it is, but cannot be read: an older one would
    be no better.
    """
    sealed.check()
    try:
        state = unpack(sealed.state)
        world = World(**sealed.facts["world"])
        cursor = Cursor.from_json(sealed.facts["cursor"])
        step = sealed.step
    except Exception as error:  # unpicklers raise anything
        raise CursorMismatch(
            f"The commit in {title} is whole, but this release cannot read it "
            f"({str(error).partition(chr(10))[0]:.200}). Use the Forebay and the PyTorch that wrote it, or give "
            "the run a new name."
        ) from error
    return Checkpoint(step=step, cursor=cursor, world=world, state=state)


class DirectoryStore:
    """`CheckpointStore` without a memory tier: every commit is written below `uri` while the worker waits.

    One folder per step: `state.pt`, then the seal `commit.json` with size and checksum. Raises `InvalidOption` for
    bounds that would keep nothing.
    """

    def __init__(self, uri: str | os.PathLike[str], *, keep_last: int = 2, keep_every: int | None = None) -> None:
        self._files = CheckpointFiles(CheckpointConfig(uri=os.fspath(uri), keep_last=keep_last, keep_every=keep_every))
        self._sealer, self._pad = Encoder(), ReusableBuffer()

    def save(self, commit: Checkpoint) -> None:
        """Write `commit`, seal it, then delete what it supersedes. Raises `OSError` where storage refuses it."""
        self._files.write(self._sealer.seal(commit, self._pad))

    def newest(self) -> Checkpoint | None:
        """The newest commit that is whole, or None; those that are torn are logged and passed over."""
        return newest_of(found_in(self._files))

    def flush(self) -> None:
        """Nothing waits: every commit was written when it was saved."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A commit that is there, or seems to be. Of two with the same step, the one of greater `nearness` is read."""

    step: int
    nearness: int
    title: str
    read: Callable[[], EncodedCheckpoint] = field(compare=False)


def found_in(files: CheckpointFiles) -> list[Found]:
    """All commits in storage, torn ones too."""
    return [Found(step, 0, files.title(step), partial(files.read, step)) for step in files.steps()]


def newest_of(found: Iterable[Found]) -> Checkpoint | None:
    """The newest that is whole, or None; those that are torn are logged and passed over. Raises as `opened` does."""
    for each in sorted(found, reverse=True):
        try:
            commit = opened(each.read(), each.title)
        except CorruptCheckpoint as torn:
            log.warning("The commit of step %d is not whole (%s); looking for the one before it.", each.step, torn)
            continue
        # Memory may have gone on since it was asked what it has.
        if commit.step < each.step or (commit.step > each.step and not each.nearness):
            raise CursorMismatch(
                f"The commit in {each.title} is of step {commit.step}. Put it back to where it was written.",
                step=each.step,
            )
        return commit
    return None
