"""Parts of a run's checkpoints in one node's memory.

They are kept for the next workers, copied, and uploaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from forebay.runtime.memory.available import available_bytes
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import PartFacts
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.shared_buffer import BufferHandle, SharedBuffer, SharedBufferWriter

_COPIES = 0
"""User of the buffers with copies of other nodes' parts. Those of ranks have numbers from 1."""
_NUM_KEPT = 2
"""Parts of a rank at once: of the checkpoint that is written, and of the newest complete one."""
MOST_PERMANENT = 3
"""Steps that are kept permanently in storage and wait here for their upload, at most."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPart:
    """A part of the checkpoint of `step`.

    `sealed` is the newest complete checkpoint before it, None if there is none.
    """

    step: int
    sealed: int | None
    facts: PartFacts


CopyPart = Callable[[KeptPart, memoryview], Awaitable[None]]
"""Function that copies a part to another node, if there is one. Never raises."""


class PartStore:
    """Store of parts, independent of Ray.

    It runs as an actor without CPUs.

    A rank writes its part into a buffer, and calls `keep`. Parts of two checkpoints are kept: the one that is written
    now, and the newest complete one. Others stay only while an upload reads them. Checkpoints that storage keeps
    permanently stay until they are uploaded.
    """

    def __init__(self, config: CheckpointConfig, copy: CopyPart) -> None:
        self._config, self._copy = config, copy
        self._buffers: dict[int, SharedBuffer] = {}
        self._numbers = count()
        self._kept: dict[tuple[int, int], tuple[KeptPart, int]] = {}
        self._readers: Counter[int] = Counter()
        self._given: dict[int, int] = {}
        self._copying: dict[int, asyncio.Task[None]] = {}
        self._turns: Counter[int] = Counter()
        self._ranks: dict[int, int] = {}
        self._num_made = 0
        self._users: dict[int, int] = {}
        self._uploaded: set[tuple[int, PartFacts]] = set()

    async def reserve(self, number: int, num_bytes: int, pid: int) -> None:
        """Make memory for two parts of about `num_bytes` each, beside training.

        For the rank with part `number`, process `pid` of this node. Its first touch takes several times as long as the
        copy. Memory of ranks that have ended is used again, whatever their numbers.
        """
        self._forget_others(number, pid)
        self._ranks[number] = pid
        with suppress(OSError):  # then each part makes its own
            while self._lacks_memory(num_bytes):
                buffer = SharedBuffer(next(self._numbers))
                self._num_made += 1
                try:
                    await asyncio.to_thread(SharedBufferWriter(buffer.path).touch, num_bytes)
                finally:
                    self._num_made -= 1
                self._buffers[buffer.number] = buffer

    async def acquire(self, step: int, number: int, sealed: int | None) -> BufferHandle:
        """Return a buffer for part `number` of `step`.

        Waits for the copy of the part before it. Raises `OSError` if another call came meanwhile: the worker of this
        one has ended.
        """
        self._turns[number] += 1
        turn = self._turns[number]
        if (before := self._copying.get(number)) is not None:
            await asyncio.wait([before])
        if turn != self._turns[number]:
            raise OSError(f"part {number} was asked for again")
        self._forget(step, sealed)
        if (abandoned := self._given.pop(number, None)) is not None:
            self._drop(abandoned)  # Its worker is dead, or about to be, and may still write there.
        buffer = self._free_buffer(number)
        self._given[number] = buffer.number
        return buffer.handle

    async def keep(self, part: KeptPart, buffer: int) -> None:
        """Keep a part in `buffer`, and start its copy."""
        number = part.facts.number
        if self._given.get(number) != buffer:
            return  # A successor of the worker has a buffer of its own.
        del self._given[number]
        self._kept[part.step, number] = part, buffer
        self._copying[number] = asyncio.create_task(self._copy_part(part, buffer))

    async def keep_copy(self, part: KeptPart, content: npt.NDArray[np.uint8]) -> None:
        """Keep a copy of another node's part."""
        self._forget(part.step, part.sealed)
        buffer = self._free_buffer(_COPIES)
        with self._reading(buffer.number):
            await asyncio.to_thread(_fill, buffer, content)
        self._kept[part.step, part.facts.number] = part, buffer.number

    async def held(self, step: int) -> list[int]:
        """Numbers of the parts of `step` that are here."""
        return [number for at, number in self._kept if at == step]

    async def locate(self, step: int, facts: PartFacts) -> str | None:
        """Path of the buffer with a part.

        For a process of this node. None if the part is not here.
        """
        found = self._find(step, facts)
        return None if found is None else self._buffers[found].path

    async def fetch(self, step: int, facts: PartFacts, begin: int, end: int) -> npt.NDArray[np.uint8] | None:
        """Bytes `begin` to `end` of a part.

        For a process of another node. None if the part is not here.
        """
        found = self._find(step, facts)
        return None if found is None else np.frombuffer(self._buffers[found].view(facts.num_bytes)[begin:end], np.uint8)

    async def upload(self, step: int, parts: Sequence[PartFacts], config: CheckpointConfig) -> tuple[int, ...] | str:
        """Write the parts that are here to storage.

        `parts` are those asked for, `config` names the storage. Returns their numbers, or the error as text.

        The options are of this attempt, or of the later one that takes them over.
        """
        files = CheckpointFiles(config)
        here = {facts.number: (facts, found) for facts in parts if (found := self._find(step, facts)) is not None}
        for number, (facts, found) in here.items():
            with self._reading(found):
                try:
                    content = self._buffers[found].view(facts.num_bytes)
                    await asyncio.to_thread(files.write_part, step, number, content)
                except OSError as error:
                    return f"{type(error).__name__}: {error}"
        return tuple(here)

    async def uploaded(self, step: int, parts: Sequence[PartFacts]) -> None:
        """Record that storage has these parts.

        Not by `upload`: a copy here is needed until the other node has written its part. Not by step alone: a run that
        went back comes to the same step again, with other parts.
        """
        self._uploaded.update((step, facts) for facts in parts if self._find(step, facts) is not None)

    def _lacks_memory(self, num_bytes: int) -> bool:
        of_ranks = sum(self._users.get(buffer) != _COPIES for buffer in self._buffers) + self._num_made
        return of_ranks < _NUM_KEPT * len(self._ranks) and available_bytes() >= 2 * num_bytes

    def _forget_others(self, number: int, pid: int) -> None:
        """Forget ranks whose processes have ended, or have another number now.

        No rank of this node may have their numbers now. Not `number`: this may run after its `acquire`.
        """
        for other, process in list(self._ranks.items()):
            if other != number and (process == pid or not _runs(process)):
                del self._ranks[other]
                if (given := self._given.pop(other, None)) is not None:
                    self._drop(given)

    def _drop(self, buffer: int) -> None:
        del self._buffers[buffer]
        self._users.pop(buffer, None)

    async def _copy_part(self, part: KeptPart, buffer: int) -> None:
        with self._reading(buffer):
            await self._copy(part, self._buffers[buffer].view(part.facts.num_bytes))

    def _find(self, step: int, facts: PartFacts) -> int | None:
        part, buffer = self._kept.get((step, facts.number), (None, -1))
        return buffer if part is not None and part.facts == facts else None

    def _forget(self, step: int, sealed: int | None) -> None:
        """Forget parts that no restore needs.

        None is needed once the part of `step` is written.
        """
        kept = {(at, part.facts) for (at, _), (part, _) in self._kept.items()}
        permanent = sorted({at for at, _ in kept - self._uploaded if at < step and self._config.is_permanent(at)})
        wanted = {step, sealed, *permanent[-MOST_PERMANENT:]}
        self._kept = {key: value for key, value in self._kept.items() if key[0] in wanted}
        self._uploaded = {(at, facts) for at, facts in self._uploaded & kept if at in wanted}

    def _free_buffer(self, user: int) -> SharedBuffer:
        """Buffer for the rank with part `user`, or for copies.

        A rank has mapped, and with a GPU locked, the buffers that it had before: it gets one of these, or else a new
        one. Copies get no buffer of a rank, which would wait for another one in its step.
        """
        in_use = {buffer for _, buffer in self._kept.values()} | set(self._given.values()) | set(+self._readers)
        free = [
            each
            for each in self._buffers.values()
            if each.number not in in_use and (self._users.get(each.number) == _COPIES) == (user == _COPIES)
        ]
        ranks = {user: 0, None: 1}
        buffer = min(free, key=lambda each: ranks.get(self._users.get(each.number), 2), default=None)
        if buffer is None:
            buffer = SharedBuffer(next(self._numbers))
            self._buffers[buffer.number] = buffer
        self._users[buffer.number] = user
        return buffer

    @contextmanager
    def _reading(self, buffer: int) -> Iterator[None]:
        self._readers[buffer] += 1
        try:
            yield
        finally:
            self._readers[buffer] -= 1


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _fill(buffer: SharedBuffer, content: npt.NDArray[np.uint8]) -> None:
    SharedBufferWriter(buffer.path).write(content.data)
