"""Process that has a trainer's checkpoints in memory too.

It waits. If the trainer ends with a checkpoint that it has not written, this process writes it, with the parts of all
ranks. It imports little before that, and no PyTorch: it takes 10 MB.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.training.checkpoint.config import CheckpointConfig
    from forebay.training.checkpoint.encoded import EncodedCheckpoint

POLL_S = 0.1


def start_keeper(config: CheckpointConfig, lock: int, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the process of a trainer that writes to `config`.

    It inherits `lock`, the descriptor of a locked file, and the memory's descriptors. Raises `OSError`.
    """
    facts = {**asdict(config), "access": None, "restorable": None if (r := config.restorable) is None else sorted(r)}
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from forebay.training.checkpoint.memory_keeper import keep\n"
        f"keep({os.getpid()}, {lock}, {list(descriptors)})"
    )
    # Not a pipe: its 64 KiB are fewer than 4,000 checkpoints that stay, and a child that is forked meanwhile keeps its
    # end open, for which the keeper would wait.
    with os.fdopen(os.memfd_create("forebay-keeper"), "r+b", buffering=0) as given:
        given.write(json.dumps(facts).encode())
        given.seek(0)
        # A session of its own: Ctrl-C ends the trainer alone. No output of the trainer stays open for readers of it.
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", program],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock, *descriptors],
            start_new_session=True,
        )


def keep(parent: int, lock: int, descriptors: Sequence[int]) -> None:
    """Entry of the process.

    Ends with the process `parent`, once all that it left in memory is written.
    """
    # Not a pipe from the parent, which its forked children would hold open too.
    while os.getppid() == parent:
        time.sleep(POLL_S)
    facts = json.load(sys.stdin)
    try:
        with Path(f"/proc/self/fd/{descriptors[0]}").open("rb") as turn:
            # One at a time: a keeper with less memory may be about to be ended, and the trainer ended before that.
            fcntl.flock(turn, fcntl.LOCK_EX)
            note = _write_rest(facts, descriptors)
        if note:
            os.pwrite(lock, note.encode(), 0)
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _write_rest(facts: dict[str, Any], descriptors: Sequence[int]) -> str:
    """Write what is in memory, and return why that failed."""
    # Only now: imports take half a second, and most trainers leave nothing.
    from forebay.errors import ForebayError  # noqa: PLC0415
    from forebay.training.checkpoint.config import CheckpointConfig  # noqa: PLC0415
    from forebay.training.checkpoint.encoded import CorruptCheckpoint, part_facts  # noqa: PLC0415
    from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles  # noqa: PLC0415
    from forebay.training.checkpoint.shared_buffer import SharedBuffer  # noqa: PLC0415

    pinned = facts["restorable"]
    config = CheckpointConfig(**{**facts, "restorable": None if pinned is None else frozenset(pinned)})
    files = CheckpointFiles(config)

    def whole(head: EncodedCheckpoint) -> EncodedCheckpoint:
        asked = [(facts, each) for facts in part_facts(head.metadata).values() for each in buffers]
        found = {facts.number: content for facts, each in asked if (content := each.part(head.step, facts)) is not None}
        return head.with_parts(found)

    def written(head: EncodedCheckpoint) -> str:
        try:
            files.with_claim(lambda: files.write(head.sealed()))
        except (OSError, ForebayError) as error:
            return (
                f"A process ended while its checkpoint of step {head.step} was in memory, and that could not be "
                f"written to {config.uri} ({error}). The run continues from the one before it."
            )
        for each in buffers:
            if (found := each.read()) is not None and found.step == head.step:
                each.clear()
        return ""

    buffers = [SharedBuffer(number, each) for number, each in enumerate(descriptors)]
    try:
        # What has no whole shard is a part.
        left = [whole(found) for each in buffers if (found := each.read()) is not None and found.shards]
    except CorruptCheckpoint as error:
        return f"What a process left in memory for {config.uri} is not a checkpoint ({error})."
    notes = [written(each) for each in sorted(left, key=lambda each: each.step)]
    return "\n".join(filter(None, notes))
