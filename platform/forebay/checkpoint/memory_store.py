"""The newest commit of a run in the memory of one node: kept for the next worker, copied to a neighbour, uploaded."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.checkpoint.encoded import CorruptCheckpoint, EncodedCheckpoint
from forebay.checkpoint.shared_buffer import BufferHandle, SharedBuffer
from forebay.checkpoint.uploader import Uploader
from forebay.errors import WriteFailed

log = logging.getLogger(__name__)

Facts = Mapping[str, Any]
Array = npt.NDArray[np.uint8]
Replicate = Callable[[EncodedCheckpoint], Awaitable[None]]
"""Has a copy made on another node where there is one. Never raises, and gives up on a node that does not answer."""


@dataclass(frozen=True, slots=True, order=True)
class StoredStep:
    """What a store has. Of two with the same step the origin, to which the worker gave it, knows more."""

    step: int
    is_origin: bool
    num_bytes: int = field(default=0, compare=False)


class MemoryStore:
    """Runs as an actor without CPUs; knows nothing of Ray. Those who ask what it has are answered at once.

    A worker writes its state and then the seal into the slot that it has leased, and says `commit`. From the seal on
    the commit is here: of a worker that dies before it could say so, it is found in the slot. A slot is leased anew
    once nobody reads from it: not the neighbour, not an upload, and it is not the newest commit. One whose worker is
    gone without a seal is not leased any more. So a worker that dies while it writes spoils nothing, though it be slow
    to die.
    """

    def __init__(self, uploads: Uploader, replicate: Replicate) -> None:
        self._uploads = uploads
        self._replicate = replicate
        self._slots: dict[int, SharedBuffer] = {}
        self._numbers = count()
        self._content: dict[int, EncodedCheckpoint] = {}
        self._leased: int | None = None
        self._left: int | None = None
        self._filling: set[int] = set()
        self._begun = self._kept = 0
        self._newest: EncodedCheckpoint | None = None
        self._is_origin = False
        self._replicated: EncodedCheckpoint | None = None
        self._replicating: EncodedCheckpoint | None = None
        self._turn = asyncio.Lock()
        self._looking = threading.Lock()

    async def lease(self) -> BufferHandle:
        """A slot for a new worker, in the place of the one before it, which is gone.

        Answers when the commit that was left there is cared for as `commit` would have.
        """
        self._look_in()
        await self._settle()
        self._look_in()  # nobody should have written meanwhile; what is there is not to be lost
        self._leave(None if self._leased in self._content else self._leased)
        self._leased = None
        return self._next_lease()

    async def commit(self, number: int) -> BufferHandle:
        """Keep what was written into slot `number`; the slot for the next one.

        Answers when it has its copy on another node. A worker writes no other before: so a node that is lost takes one
        commit along at most.
        """
        sealed = self._said(number)
        # None: its worker is gone, and the next one has found what there was.
        if sealed is not None:
            if sealed is not self._newest:
                self._keep(sealed, number, self._ticket(), is_origin=True)
            if number == self._left:
                self._left = None
            else:
                self._leave(None)
                self._leased = None
        await self._settle()
        return self._next_lease()

    async def hold(self, facts: Facts, state: Array) -> None:
        """Keep a copy of the newest commit, whose origin is on another node; `state` as uint8.

        It is dropped if another commit came while it was being copied: that one is newer, and may be this node's own.
        """
        self._look_in()  # what a worker has left here came before
        ticket, slot = self._ticket(), self._free_slot()
        self._filling.add(slot.number)
        self._content.pop(slot.number, None)
        slot.clear()
        view = await asyncio.to_thread(self._fill, slot, state)
        if ticket < self._kept:
            return
        self._uploads.forget()
        self._keep(EncodedCheckpoint(facts=facts, state=view), slot.number, ticket, is_origin=False)

    async def holding(self) -> StoredStep | None:
        """Which commit it has."""
        return self._held()

    async def shown(self) -> tuple[Facts, str] | None:
        """Its commit for a process of this node: the facts, and the slot's file."""
        self._look_in()
        if self._newest is None:
            return None
        number = next(number for number, sealed in self._content.items() if sealed is self._newest)
        return self._newest.facts, self._slots[number].path

    async def given(self) -> tuple[Facts, Array] | None:
        """Its commit, the state as uint8."""
        self._look_in()
        return None if self._newest is None else (self._newest.facts, np.frombuffer(self._newest.state, np.uint8))

    async def flush(self) -> WriteFailed | None:
        """Have its commit in storage; the error if it cannot get there."""
        self._look_in()
        newest = self._newest
        if newest is None:
            return None
        if not self._is_origin:
            seen = self._begun
            if await asyncio.to_thread(self._is_in_storage, newest.step):
                return None
            if seen != self._begun:  # others care for what came meanwhile, unless it is of a worker here
                return await self.flush() if self._is_origin else None
        try:
            self._uploads.take(newest)
            await asyncio.to_thread(self._uploads.flush)
        except WriteFailed as error:
            return error
        return None

    async def give_up(self, step: int) -> None:
        """Leave storage to a worker that writes the commit of `step` there itself: it would be deleted as a later one.

        What is here stays, as a copy would, in case the worker does not live to see the end of that.
        """
        self._look_in()
        self._ticket()  # for a flush that is under way
        self._uploads.forget()
        self._is_origin = False
        if self._newest is not None and self._newest.step > step:
            self._newest = None

    def _held(self) -> StoredStep | None:
        self._look_in()
        newest = self._newest
        return None if newest is None else StoredStep(newest.step, self._is_origin, newest.num_bytes)

    def _look_in(self) -> None:
        """Keep a commit of which the worker has not said yet that it is there, or never will.

        It is in the leased slot, or in that of a worker that was thought to be gone.
        """
        with self._looking:
            for number in (self._left, self._leased):
                if number is not None and number not in self._content and (sealed := self._sealed_in(number)):
                    self._keep(sealed, number, self._ticket(), is_origin=True)

    def _sealed_in(self, number: int) -> EncodedCheckpoint | None:
        """A whole commit in slot `number`; of one whose worker was thought to be gone, only what is news."""
        try:
            sealed = self._slots[number].sealed()
            if sealed is None:
                return None
            sealed.check()
        except CorruptCheckpoint as torn:
            log.warning("What a worker has left in memory is no commit (%s).", torn)
            return None
        is_news = self._newest is None or sealed.step > self._newest.step
        return sealed if is_news or number == self._leased else None

    def _said(self, number: int) -> EncodedCheckpoint | None:
        """What was written into slot `number`, if it is still that of the worker who says so."""
        if number not in (self._leased, self._left):
            return None
        return self._content.get(number) or self._slots[number].sealed()

    def _leave(self, number: int | None) -> None:
        """Lease slot `number` no more: a worker that should be gone may write there.

        It is given up when the worker in its place has a commit; until then that one may be gone sooner.
        """
        if self._left is not None and self._left not in self._content:
            del self._slots[self._left]
        self._left = number

    async def _settle(self) -> None:
        """Return once the newest commit is on its way to storage, and has its copy on another node."""
        if self._newest is not None and self._is_origin:
            # Here, not in the thread: there it might come after what gives it up.
            self._uploads.take(self._newest)
            # It waits where storage is slower than the commits that are to stay for ever.
            await asyncio.gather(asyncio.to_thread(self._uploads.wait, self._newest), self._have_copied())

    async def _have_copied(self) -> None:
        """Return once the newest commit has its copy on another node, where there is one."""
        async with self._turn:
            newest = self._newest
            if newest is None or newest is self._replicated or not self._is_origin:
                return
            self._replicating = newest
            await self._replicate(newest)
            self._replicated, self._replicating = newest, None

    def _next_lease(self) -> BufferHandle:
        # There is one if a new worker has come meanwhile, and this answer is for one that has gone.
        if self._leased is None:
            slot = self._free_slot()
            self._content.pop(slot.number, None)
            slot.clear()
            self._leased = slot.number
        return self._slots[self._leased].lease

    def _ticket(self) -> int:
        """The order in which commits and copies come; copies are not finished in it."""
        self._begun += 1
        return self._begun

    def _keep(self, sealed: EncodedCheckpoint, number: int, ticket: int, *, is_origin: bool) -> None:
        self._content[number] = sealed
        self._newest, self._is_origin, self._kept = sealed, is_origin, ticket

    def _fill(self, slot: SharedBuffer, state: Array) -> memoryview:
        try:
            return slot.fill(state.data)
        finally:
            # Here, not where it is waited for: a call that is cancelled leaves this thread writing.
            self._filling.discard(slot.number)

    def _free_slot(self) -> SharedBuffer:
        read = [*self._uploads.holds(), self._newest, self._replicating]
        for slot in self._slots.values():
            content = self._content.get(slot.number)
            is_written = slot.number in (self._leased, self._left) or slot.number in self._filling
            if not is_written and (content is None or content not in read):
                return slot
        slot = SharedBuffer(next(self._numbers))
        self._slots[slot.number] = slot
        return slot

    def _is_in_storage(self, step: int) -> bool:
        """Whether a whole commit of `step` or later is there: a copy must not take the place of what followed it."""
        files = self._uploads.files
        for stored in files.steps():
            if stored < step:
                return False
            try:
                files.read(stored).check()
            except CorruptCheckpoint:
                continue
            return True
        return False
