"""The newest commit of a run in the memory of one node: kept for the next worker, copied to a neighbour, uploaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.driver.slots import Lease, Slot
from forebay.errors import WriteFailed
from forebay.train.sealed import Sealed, TornError
from forebay.train.uploads import Uploads

Facts = Mapping[str, Any]
Array = npt.NDArray[np.uint8]
Replicate = Callable[[Sealed], Awaitable[None]]
"""Has a copy made on another node where there is one. Never raises, and gives up on a node that does not answer."""


@dataclass(frozen=True, slots=True, order=True)
class Holding:
    """What a store has. Of two with the same step the origin, to which the worker gave it, knows more."""

    step: int
    is_origin: bool


class CommitStore:
    """Runs as an actor without CPUs; knows nothing of Ray. All methods but `flush` and `commit` answer at once.

    A worker writes its state into the slot that it has leased, and then says `commit`. A slot is leased anew once
    nobody reads from it: not the neighbour, not an upload, and it is not the newest commit. So a worker that dies
    while it writes spoils nothing.
    """

    def __init__(self, uploads: Uploads, replicate: Replicate) -> None:
        self._uploads = uploads
        self._replicate = replicate
        self._slots: list[Slot] = []
        self._content: dict[int, Sealed] = {}
        self._leased: int | None = None
        self._filling: set[int] = set()
        self._begun = self._kept = 0
        self._newest: Sealed | None = None
        self._is_origin = False
        self._replicating: tuple[Sealed, asyncio.Task[None]] | None = None

    async def lease(self) -> Lease:
        """A slot to write the next state into; the one that was leased before is free again."""
        self._leased = None
        slot = self._free_slot()
        self._leased = slot.number
        return slot.lease

    async def commit(self, number: int, facts: Facts) -> Lease:
        """Keep what was written into slot `number`; the slot for the next one.

        Answers when the commit before this one has its copy on another node: a node that is lost then takes one commit
        along at most.
        """
        sealed = Sealed(facts=facts, state=self._slots[number].view(facts["state_bytes"]))
        self._keep(sealed, number, self._ticket(), is_origin=True)
        if self._replicating is not None:
            await self._replicating[1]
        # In a thread: it waits where storage is slower than the commits that are to stay for ever.
        await asyncio.to_thread(self._uploads.offer, sealed)
        self._replicating = (sealed, asyncio.ensure_future(self._replicate(sealed)))
        return await self.lease()

    async def hold(self, facts: Facts, state: Array) -> None:
        """Keep a copy of the newest commit, whose origin is on another node; `state` as uint8.

        It is dropped if another commit came while it was being copied: that one is newer, and may be this node's own.
        """
        ticket, slot = self._ticket(), self._free_slot()
        self._filling.add(slot.number)
        self._content.pop(slot.number, None)
        view = await asyncio.to_thread(self._fill, slot, state)
        if ticket < self._kept:
            return
        self._uploads.forget()
        self._keep(Sealed(facts=facts, state=view), slot.number, ticket, is_origin=False)

    async def holding(self) -> Holding | None:
        """Which commit it has."""
        return None if self._newest is None else Holding(self._newest.step, self._is_origin)

    async def shown(self) -> tuple[Facts, str] | None:
        """Its commit for a process of this node: the facts, and the file that is the state."""
        if self._newest is None:
            return None
        number = next(number for number, sealed in self._content.items() if sealed is self._newest)
        return self._newest.facts, self._slots[number].path

    async def given(self) -> tuple[Facts, Array] | None:
        """Its commit, the state as uint8."""
        return None if self._newest is None else (self._newest.facts, np.frombuffer(self._newest.state, np.uint8))

    async def flush(self) -> WriteFailed | None:
        """Have its commit in storage; the error if it cannot get there."""
        newest = self._newest
        if newest is None or (not self._is_origin and await asyncio.to_thread(self._is_in_storage, newest.step)):
            return None
        try:
            await asyncio.to_thread(self._uploads.offer, newest)
            await asyncio.to_thread(self._uploads.flush)
        except WriteFailed as error:
            return error
        return None

    def _ticket(self) -> int:
        """The order in which commits and copies come; copies are not finished in it."""
        self._begun += 1
        return self._begun

    def _keep(self, sealed: Sealed, number: int, ticket: int, *, is_origin: bool) -> None:
        self._content[number] = sealed
        self._newest, self._is_origin, self._kept = sealed, is_origin, ticket

    def _fill(self, slot: Slot, state: Array) -> memoryview:
        try:
            return slot.fill(state.data)
        finally:
            # Here, not where it is waited for: a call that is cancelled leaves this thread writing.
            self._filling.discard(slot.number)

    def _free_slot(self) -> Slot:
        read = [*self._uploads.holds(), self._newest]
        if self._replicating is not None and not self._replicating[1].done():
            read.append(self._replicating[0])
        for slot in self._slots:
            content = self._content.get(slot.number)
            is_written = slot.number == self._leased or slot.number in self._filling
            if not is_written and (content is None or content not in read):
                return slot
        self._slots.append(Slot(len(self._slots)))
        return self._slots[-1]

    def _is_in_storage(self, step: int) -> bool:
        """Whether a whole commit of `step` or later is there: a copy must not take the place of what followed it."""
        files = self._uploads.files
        for stored in files.steps():
            if stored < step:
                return False
            try:
                files.read(stored).check()
            except TornError:
                continue
            return True
        return False
