"""Part store of one node, without Ray.

What it keeps, which buffers it hands out, and what it uploads.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import PartFacts, block_sums, sum_of
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.part_memory import store
from forebay.training.checkpoint.part_memory.store import KeptPart, PartStore
from forebay.training.checkpoint.shared_buffer import SharedBufferWriter

SIZE = 1000
PROCESSES = {1: os.getpid(), 2: os.getppid()}
"""Processes that run, by the number of a part."""


class PartNode:
    """A part store, and workers of its node."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.copied: list[tuple[int, int, bytes]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.store = PartStore(config, self._copy)
        self.buffers: set[int] = set()
        self.buffers_of: dict[int, set[int]] = defaultdict(set)
        self.found_bytes: list[int] = []

    async def save(self, step: int, number: int, sealed: int | None) -> PartFacts:
        handle = await self.store.acquire(step, number, sealed)
        self.buffers.add(handle.number)
        self.buffers_of[number].add(handle.number)
        writer = SharedBufferWriter(handle.path)
        self.found_bytes.append(writer.capacity)
        writer.write(content_of(step, number))
        facts = facts_of(step, number)
        await self.store.keep(KeptPart(step=step, sealed=sealed, facts=facts), handle.number)
        return facts

    async def has(self, step: int, number: int) -> bool:
        found = await self.store.fetch(step, facts_of(step, number), 0, SIZE)
        assert found is None or found.tobytes() == content_of(step, number)
        return found is not None

    async def _copy(self, part: KeptPart, content: memoryview) -> None:
        await self.hold.wait()
        self.copied.append((part.step, part.facts.number, bytes(content)))


def content_of(step: int, number: int) -> bytes:
    return bytes([step % 251, number]) * (SIZE // 2)


def facts_of(step: int, number: int) -> PartFacts:
    return PartFacts(number=number, num_bytes=SIZE, checksum=sum_of(block_sums(content_of(step, number))))


@pytest.fixture
def config(tmp_path: Path) -> CheckpointConfig:
    return CheckpointConfig(uri=str(tmp_path), keep_every=10)


def test_the_complete_checkpoint_stays_until_the_next_is_complete(config: CheckpointConfig) -> None:
    async def run() -> None:
        node = PartNode(config)
        for step in range(1, 9):
            for number in (1, 2):
                await node.save(step, number, step - 1 or None)
                assert await node.has(step, number)
            assert [await node.has(at, 1) for at in (step - 1, step - 2)] == [step > 1, False]
        assert len(node.buffers) <= 7, "memory is used again: two checkpoints of two parts, and copies"
        await asyncio.sleep(0)
        assert {(8, 1, content_of(8, 1)), (7, 2, content_of(7, 2))} <= set(node.copied)
        # The run goes back to 7 in another world, whose checkpoint 9 does not become complete before 10 is tried.
        await node.save(9, 3, 7)
        assert [await node.has(at, 1) for at in (7, 8)] == [True, False]
        await node.save(10, 3, 7)
        assert await node.has(7, 1) and not await node.has(9, 3)

    asyncio.run(run())


def test_the_next_part_waits_for_the_copy_of_the_one_before(config: CheckpointConfig) -> None:
    async def run() -> None:
        node = PartNode(config)
        node.hold.clear()
        await node.save(1, 1, None)
        waiting = asyncio.create_task(node.save(2, 1, 1))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        node.hold.set()
        await waiting
        assert node.copied[0] == (1, 1, content_of(1, 1))

    asyncio.run(run())


@pytest.fixture(scope="module")
def ended() -> int:
    """Id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_memory_that_was_reserved_is_the_ranks_and_not_for_copies(config: CheckpointConfig) -> None:
    async def run() -> None:
        node = PartNode(config)
        await asyncio.gather(*[node.store.reserve(number, 5 * SIZE, pid) for number, pid in PROCESSES.items()])
        await node.save(1, 1, None)
        copy = KeptPart(step=1, sealed=None, facts=facts_of(1, 7))
        await node.store.keep_copy(copy, np.frombuffer(content_of(1, 7), np.uint8))
        for step in range(1, 6):
            for number in (1, 2) if step % 2 else (2, 1):
                await node.save(step, number, step - 1 or None)
        assert len(node.buffers) == 4 and min(node.found_bytes) >= 5 * SIZE
        assert [len(each) for each in node.buffers_of.values()] == [2, 2], "each rank maps its own only"

    asyncio.run(run())


def test_ranks_with_other_numbers_get_the_memory_of_those_that_ended(config: CheckpointConfig, ended: int) -> None:
    """As after a resize, or a lost node: it would fill up with memory of ranks which are elsewhere."""

    async def run() -> None:
        node, step = PartNode(replace(config, keep_every=None)), 0
        for world in range(6):
            numbers = (2 * world + 1, 2 * world + 2)
            for number, pid in zip(numbers, PROCESSES.values(), strict=True):
                await node.store.reserve(number, SIZE, pid)
            for _ in range(4):
                step += 1
                for number in numbers:
                    await node.save(step, number, step - 1 or None)
            if world % 2:
                await node.store.acquire(step + 1, numbers[0], step)  # and it ends before it has written
            if world < 3:  # later ones have the same processes
                node.store._ranks = dict.fromkeys(numbers, ended)
        assert len(node.store._buffers) <= 5

    asyncio.run(run())


def test_a_checkpoint_before_the_first_step_needs_no_third_buffer(config: CheckpointConfig) -> None:
    async def run() -> None:
        node = PartNode(config)
        await node.store.reserve(1, 0, os.getpid())
        handle = await node.store.acquire(1, 1, None)
        await node.store.reserve(1, SIZE, os.getpid())  # calls of an actor may change places
        SharedBufferWriter(handle.path).write(content_of(1, 1))
        await node.store.keep(KeptPart(step=1, sealed=None, facts=facts_of(1, 1)), handle.number)
        assert await node.has(1, 1)
        for step in range(2, 9):
            await node.save(step, 1, step - 1)
        assert len(node.store._buffers) == 2

    asyncio.run(run())


@pytest.mark.parametrize("refused", ["memory", "descriptors"])
def test_what_cannot_be_reserved_is_made_by_the_first_part(
    config: CheckpointConfig, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    async def run() -> None:
        node = PartNode(config)
        with monkeypatch.context() as patch:
            if refused == "memory":
                patch.setattr(store, "available_bytes", lambda: 9.0 * SIZE)
            else:
                patch.setattr(os, "memfd_create", refuse)
            await node.store.reserve(1, 5 * SIZE, os.getpid())
        await node.save(1, 1, None)
        assert node.found_bytes == [0]

    def refuse(_: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    asyncio.run(run())


def test_a_first_part_does_not_wait_for_memory(config: CheckpointConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank would take the store for lost, and end it with the parts of all ranks."""

    async def run() -> None:
        node = PartNode(config)
        reserving = asyncio.create_task(node.store.reserve(1, SIZE, os.getpid()))
        assert await asyncio.to_thread(is_touching.wait, 60)
        await node.save(1, 1, None)
        goes_on.set()
        await reserving
        await node.save(2, 1, 1)
        await node.save(3, 1, 2)
        assert len(node.store._buffers) == 2

    is_touching, goes_on = threading.Event(), threading.Event()

    def touch(*_: object) -> None:
        is_touching.set()
        goes_on.wait(60)

    monkeypatch.setattr(SharedBufferWriter, "touch", touch)
    asyncio.run(run())


def test_a_worker_that_ended_while_it_waited_takes_no_buffer_from_its_successor(config: CheckpointConfig) -> None:
    async def run() -> None:
        node = PartNode(config)
        node.hold.clear()
        await node.save(1, 1, None)
        dead = asyncio.create_task(node.store.acquire(2, 1, 1))
        await asyncio.sleep(0.01)
        successor = asyncio.create_task(node.save(2, 1, 1))
        await asyncio.sleep(0.01)
        node.hold.set()
        await successor
        with pytest.raises(OSError, match="part 1 was asked for again"):
            await dead
        assert await node.has(2, 1)

    asyncio.run(run())


def test_a_buffer_of_a_dead_worker_is_not_handed_out_again(config: CheckpointConfig) -> None:
    async def run() -> None:
        node = PartNode(config)
        dead = await node.store.acquire(1, 1, None)
        late = SharedBufferWriter(dead.path)
        for step in (1, 2, 3, 4):
            await node.save(step, 1, step - 1 or None)
            late.reset()
            late.write(b"\xff" * SIZE)
        assert dead.number not in node.buffers
        await node.store.keep(KeptPart(step=9, sealed=4, facts=facts_of(9, 1)), dead.number)
        assert await node.has(4, 1) and not await node.has(9, 1)

    asyncio.run(run())


def test_uploads_write_what_is_here_and_permanent_steps_wait_for_theirs(config: CheckpointConfig) -> None:
    async def run() -> None:
        node, copy = PartNode(config), PartNode(config)
        for step in range(9, 14):
            await node.save(step, 1, step - 1)
        assert await node.has(10, 1), "storage keeps it permanently, and does not have it yet"
        asked = [facts_of(10, 1), facts_of(10, 2)]
        part = KeptPart(step=10, sealed=None, facts=asked[1])
        await copy.store.keep_copy(part, np.frombuffer(content_of(10, 2), np.uint8))
        assert (await node.store.upload(10, asked, config), await copy.store.upload(10, asked, config)) == ((1,), (2,))
        files = CheckpointFiles(config)
        assert [files.has_part(10, facts) for facts in asked] == [True, True]
        assert files.part_readers(10, 2)[0](1, 3) == content_of(10, 2)[1:3]
        await node.save(14, 1, 13)
        assert await node.has(10, 1), "its upload is not complete before all nodes have written their parts"
        await node.store.uploaded(10, asked)
        await node.save(15, 1, 14)
        assert not await node.has(10, 1), "uploaded"
        assert await node.store.upload(11, [facts_of(11, 1)], config) == (), "given up"
        stale = PartFacts(number=1, num_bytes=SIZE, checksum="of another future")
        assert await node.store.locate(15, stale) is None

    asyncio.run(run())


def test_parts_of_a_step_that_comes_again_wait_for_an_upload_of_their_own(config: CheckpointConfig) -> None:
    async def run() -> None:
        node = PartNode(config)
        await node.save(10, 1, 9)
        other = PartFacts(number=1, num_bytes=SIZE, checksum="of the future that was given up")
        await node.store.uploaded(10, [other])
        for step in (11, 12, 13):
            await node.save(step, 1, step - 1)
        assert await node.has(10, 1)

    asyncio.run(run())
