"""Parts of a run's checkpoints in one node's memory.

They are kept for the next workers, copied, and uploaded.
"""

from __future__ import annotations

import asyncio
import logging
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
        self._reserving: dict[int, asyncio.Task[None]] = {}
        self._for_copies: set[int] = set()
        self._uploaded: set[tuple[int, PartFacts]] = set()

    async def reserve(self, number: int, num_bytes: int) -> None:
        """Make memory for two parts of about `num_bytes`, beside training.

        For the rank with part `number`. Its first touch takes several times as long as the copy.
        """
        if number not in self._reserving:
            self._reserving[number] = asyncio.create_task(self._reserve(num_bytes))

    async def acquire(self, step: int, number: int, sealed: int | None) -> BufferHandle:
        """Return a buffer for part `number` of `step`.

        Waits for the copy of the part before it.
        """
        for before in (self._reserving.get(number), self._copying.pop(number, None)):
            if before is not None:
                await before
        self._forget(step, sealed)
        if (abandoned := self._given.pop(number, None)) is not None:
            del self._buffers[abandoned]  # Its worker is dead, or about to be, and may still write there.
        buffer = self._free_buffer()
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
        buffer = self._free_buffer(of_copies=True)
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

    async def _reserve(self, num_bytes: int) -> None:
        for _ in range(_NUM_KEPT):
            if available_bytes() < 2 * num_bytes:
                return  # then each part makes its own
            buffer = SharedBuffer(next(self._numbers))
            with suppress(OSError):
                await asyncio.to_thread(SharedBufferWriter(buffer.path).touch, num_bytes)
                self._buffers[buffer.number] = buffer

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

    def _free_buffer(self, *, of_copies: bool = False) -> SharedBuffer:
        in_use = {buffer for _, buffer in self._kept.values()} | set(self._given.values()) | set(+self._readers)
        for buffer in self._buffers.values():
            # A copy must not take the memory of a rank, which would wait for other memory in its step.
            if buffer.number not in in_use and (buffer.number in self._for_copies) == of_copies:
                return buffer
        buffer = SharedBuffer(next(self._numbers))
        self._buffers[buffer.number] = buffer
        if of_copies:
            self._for_copies.add(buffer.number)
        return buffer

    @contextmanager
    def _reading(self, buffer: int) -> Iterator[None]:
        self._readers[buffer] += 1
        try:
            yield
        finally:
            self._readers[buffer] -= 1


def _fill(buffer: SharedBuffer, content: npt.NDArray[np.uint8]) -> None:
    SharedBufferWriter(buffer.path).write(content.data)
