"""What a store does on its node, without Ray: a worker that writes, a neighbour that takes copies, and storage."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.checkpoint.store_laws import commit_at

from forebay.checkpoint.buffer import ReusableBuffer
from forebay.checkpoint.checkpoint import Encoder, opened
from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import Bytes, EncodedCheckpoint
from forebay.checkpoint.files import CheckpointFiles
from forebay.checkpoint.memory_store import MemoryStore, StoredStep
from forebay.checkpoint.shared_buffer import (
    BufferHandle,
    SharedBuffer,
    SharedBufferClient,
    SharedBufferWriter,
    read_slot,
)
from forebay.checkpoint.uploader import Uploader
from forebay.errors import WriteFailed


class StoreNode:
    """A store, what was replicated from it, and the worker beside it."""

    def __init__(self, folder: Path) -> None:
        self.uploads = Uploader(CheckpointConfig(uri=str(folder / "commits"), storage_every_s=1e6, keep_every=50))
        self.store = MemoryStore(self.uploads, self._replicate)
        self.copies: list[int] = []
        self.way = asyncio.Event()
        self.way.set()
        self._lease: BufferHandle | None = None

    async def _replicate(self, sealed: EncodedCheckpoint) -> None:
        await self.way.wait()
        sealed.check()
        self.copies.append(sealed.step)

    async def save(self, step: int, **state: Any) -> None:
        number = await self.write(step, **state)
        self._lease = await self.store.commit(number)

    async def write(self, step: int, **state: Any) -> int:
        """What a worker does before it says so."""
        self._lease = self._lease or await self.store.lease()
        write(self._lease, step, **state)
        return self._lease.number

    def another_worker(self) -> None:
        """In the place of the one before, which is gone."""
        self._lease = None

    async def newest(self) -> int:
        shown = await self.store.shown()
        assert shown is not None
        facts, path = shown
        commit = opened(EncodedCheckpoint(facts=facts, state=read_slot(path, facts["state_bytes"])), path)
        assert commit.state["weight"][0] == commit.step
        return commit.step


def write(lease: BufferHandle, step: int, **state: Any) -> None:
    pad = SharedBufferWriter(lease.path)
    pad.seal(Encoder().seal(commit_at(step, **state), pad))


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[[], StoreNode]]:
    made: list[StoreNode] = []

    def make() -> StoreNode:
        made.append(StoreNode(tmp_path))
        return made[-1]

    yield make
    for node in made:
        node.uploads.close()


def test_the_newest_is_kept_and_copied(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        assert await node.store.holding() is None and await node.store.shown() is None
        for step in range(1, 8):
            await node.save(step)
            assert await node.newest() == step
            assert await node.store.holding() == StoredStep(step, is_origin=True)
        assert node.copies == list(range(1, 8))
        assert len(node.store._slots) <= 3

    asyncio.run(scene())


def test_a_commit_is_not_acknowledged_before_it_has_its_copy(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        node.way.clear()
        saving = asyncio.ensure_future(node.save(1))
        done, _ = await asyncio.wait([saving], timeout=0.1)
        assert not done and node.copies == []
        assert await node.newest() == 1, "it is there all the same, if the worker dies now"
        node.way.set()
        await saving
        assert node.copies == [1]

    asyncio.run(scene())


@pytest.mark.parametrize("ask", ["holding", "shown", "given", "flush", "lease"])
def test_a_commit_is_there_before_its_worker_has_said_so(make_node: Callable[[], StoreNode], ask: str) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        number = await node.write(2)
        await getattr(node.store, ask)()
        assert node.store._newest is not None and node.store._newest.step == 2
        if ask == "flush":
            assert node.uploads.files.steps()[0] == 2
        node._lease = await node.store.commit(number)
        await node.save(3)
        assert await node.newest() == 3
        assert node.copies == [1, 2, 3]
        assert len(node.store._slots) <= 3

    asyncio.run(scene())


def test_what_a_worker_left_is_copied_before_the_next_one_goes_on(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        await node.write(2)
        assert await node.store.holding() == StoredStep(2, is_origin=True)
        node.way.clear()
        node.another_worker()
        saving = asyncio.ensure_future(node.save(3))
        done, _ = await asyncio.wait([saving], timeout=0.1)
        assert not done and await node.newest() == 2
        node.way.set()
        await saving
        assert node.copies == [1, 2, 3]

    asyncio.run(scene())


def test_what_a_worker_left_and_is_to_stay_for_ever_gets_to_storage(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(49)
        await node.write(50)
        node.another_worker()
        await node.save(51)
        assert await node.store.flush() is None
        assert 50 in node.uploads.files.sealed_steps()

    asyncio.run(scene())


def test_after_giving_up_nothing_is_written_over_what_its_worker_wrote_itself(
    make_node: Callable[[], StoreNode],
) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        assert await node.store.flush() is None
        await node.save(7)
        node.way.clear()
        await node.write(8)
        node.another_worker()
        waiting = asyncio.ensure_future(node.store.lease())
        await asyncio.sleep(0)
        assert node.uploads.holds() != []
        await node.store.give_up(9)
        assert await node.newest() == 8, "in case that fails"
        files = node.uploads.files
        files.write(Encoder().seal(commit_at(9), ReusableBuffer()))
        assert await node.store.flush() is None
        assert node.uploads.is_done and files.steps()[0] == 9
        node.way.set()
        await waiting
        await node.store.give_up(5)
        assert await node.store.holding() is None, "a future that was given up"

    asyncio.run(scene())


def test_the_same_commit_again_is_the_newest_again(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        for step in (7, 8, 7, 8, 7):
            await node.save(step)
            assert await node.newest() == step
        await node.write(8)
        assert await node.newest() == 8

    asyncio.run(scene())


def test_late_word_of_a_worker_that_is_gone_takes_nothing_from_the_next(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        late = await node.write(2)
        node.another_worker()
        number = await node.write(3)
        await node.store.commit(late)
        assert await node.newest() == 3, "found in the slot of the worker that is there"
        node._lease = await node.store.commit(number)
        await node.save(4)
        assert await node.newest() == 4

    asyncio.run(scene())


def test_a_worker_that_is_slow_to_die_writes_nothing_into_the_slot_of_the_next(
    make_node: Callable[[], StoreNode],
) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        old = await node.store.lease()
        late = SharedBufferWriter(old.path)
        node.another_worker()
        number = await node.write(2)
        late.seal(Encoder().seal(commit_at(90), late))
        assert await node.newest() == 2
        node._lease = await node.store.commit(number)
        await node.store.commit(old.number)
        assert await node.newest() == 2

    asyncio.run(scene())


def test_another_worker_that_only_looks_takes_nothing_from_the_one_that_is_there(
    make_node: Callable[[], StoreNode],
) -> None:
    async def scene() -> None:
        node = make_node()
        for step in (1, 2, 3):
            await node.save(step)
            await node.store.lease()
            assert await node.newest() == step
        assert len(node.store._slots) <= 4

    asyncio.run(scene())


def test_a_seal_without_its_state_is_no_commit(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        await node.write(2)
        assert node._lease is not None
        SharedBufferWriter(node._lease.path).write(os.urandom(500))
        assert await node.newest() == 1
        node.another_worker()
        await node.save(3)
        assert await node.newest() == 3

    asyncio.run(scene())


def test_a_worker_that_dies_while_it_writes_spoils_nothing(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        for step in (1, 2):
            await node.save(step)
        assert node._lease is not None
        SharedBufferWriter(node._lease.path).write(os.urandom(5000))
        assert await node.newest() == 2
        node.another_worker()
        await node.save(3)
        assert await node.newest() == 3

    asyncio.run(scene())


def test_what_is_being_uploaded_is_not_written_over(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def scene() -> None:
        node, loop = make_node(), asyncio.get_running_loop()
        original = CheckpointFiles.write

        def slow(files: CheckpointFiles, sealed: EncodedCheckpoint) -> None:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            sealed.check()
            original(files, sealed)

        monkeypatch.setattr(CheckpointFiles, "write", slow)
        await node.save(1)
        await begun.wait()
        for step in range(2, 12):
            await node.save(step)
        go_on.set()
        assert await node.store.flush() is None
        assert node.uploads.files.steps() == [11, 1]
        assert len(node.store._slots) <= 4

    asyncio.run(scene())


def test_a_copy_is_held_given_away_and_flushed(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        origin, copy = make_node(), make_node()
        for step in (5, 6):
            await origin.save(step)
            given = await origin.store.given()
            assert given is not None
            await copy.store.hold(*given)
            assert await copy.store.holding() == StoredStep(step, is_origin=False)
            assert await copy.newest() == step
        assert max(StoredStep(6, is_origin=False), StoredStep(6, is_origin=True)).is_origin
        assert await copy.store.flush() is None
        assert copy.uploads.files.steps()[0] == 6

    asyncio.run(scene())


def test_a_copy_does_not_take_the_place_of_what_followed_it(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        origin, copy = make_node(), make_node()
        await origin.save(5)
        given = await origin.store.given()
        assert given is not None
        await copy.store.hold(*given)
        await origin.save(6)
        assert await origin.store.flush() is None
        assert await copy.store.flush() is None
        files = origin.uploads.files
        assert files.steps()[0] == 6
        files._write(f"{files._folder(6)}/state.pt", b"torn")
        files._delete(5) if 5 in files.steps() else None
        assert await copy.store.flush() is None
        assert files.steps() == [5], "what is torn is nothing"

    asyncio.run(scene())


def test_a_copy_is_newer_than_what_a_worker_left_before(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(5)
        number = await node.write(6)
        await node.store.hold(*copy_of(4))
        assert await node.newest() == 4
        node._lease = await node.store.commit(number)
        assert await node.newest() == 6, "but not newer than what a worker says is there"

    asyncio.run(scene())


@pytest.mark.parametrize("is_looked_for", [False, True])
def test_a_copy_of_before_takes_nothing_from_the_worker_that_is_there(
    make_node: Callable[[], StoreNode], is_looked_for: bool
) -> None:
    async def scene() -> None:
        node = make_node()
        number = await node.write(101)
        if is_looked_for:
            assert await node.newest() == 101
        await node.store.hold(*copy_of(100))
        node._lease = await node.store.commit(number)
        assert await node.newest() == 101

    asyncio.run(scene())


@pytest.mark.parametrize("is_copy", [False, True])
def test_late_word_of_a_slot_that_has_another_use_by_now(make_node: Callable[[], StoreNode], is_copy: bool) -> None:
    async def scene() -> None:
        node = make_node()
        late = await node.write(1)
        assert await node.store.flush() is None
        node.another_worker()
        if is_copy:
            await node.store.lease()
            await node.store.hold(*copy_of(2))
            await node.store.hold(*copy_of(3))
            assert node.store._slots[late].sealed() is None, "3 is there"
        else:
            await node.save(3)
            assert node._lease is not None and node._lease.number == late
        await node.store.commit(late)
        assert await node.newest() == 3

    asyncio.run(scene())


def test_those_who_look_at_once_find_one_commit(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, original = threading.Barrier(2), EncodedCheckpoint.check

    def check(sealed: EncodedCheckpoint) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        original(sealed)

    async def scene() -> None:
        node = make_node()
        await node.write(1)
        monkeypatch.setattr(EncodedCheckpoint, "check", check)
        begun = node.store._begun
        await asyncio.gather(*[asyncio.to_thread(node.store._look_in) for _ in range(2)])
        assert node.store._begun == begun + 1

    asyncio.run(scene())


def test_one_that_was_origin_and_becomes_a_copy_uploads_no_more(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        old, new = make_node(), make_node()
        await old.save(1)
        assert await old.store.flush() is None
        await old.save(9)
        await new.save(2)
        given = await new.store.given()
        assert given is not None
        await old.store.hold(*given)
        assert await old.newest() == 2
        assert await new.store.flush() is None
        assert old.uploads.is_done and new.uploads.files.steps() == [2, 1]

    asyncio.run(scene())


def test_what_is_given_up_while_a_flush_looks_into_storage_is_not_written(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        node, loop = make_node(), asyncio.get_running_loop()
        files = node.uploads.files
        await node.store.hold(*copy_of(10))

        def too_early(_step: int) -> bool:
            asyncio.run_coroutine_threadsafe(node.store.give_up(11), loop).result(60.0)
            files.write(Encoder().seal(commit_at(11), ReusableBuffer()))
            return False

        monkeypatch.setattr(node.store, "_is_in_storage", too_early)
        assert await node.store.flush() is None
        assert files.steps() == [11]

    asyncio.run(scene())


class Hurdle:
    """Holds up the copies that are being written into a store, each until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[threading.Event] = []
        self._begun = threading.Semaphore(0)
        original = SharedBuffer.fill

        def fill(slot: SharedBuffer, content: Bytes) -> memoryview:
            mine = threading.Event()
            self.waiting.append(mine)
            self._begun.release()
            assert mine.wait(60.0)
            return original(slot, content)

        monkeypatch.setattr(SharedBuffer, "fill", fill)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.acquire, timeout=60.0)


def copy_of(step: int) -> tuple[dict[str, Any], Any]:
    sealed = Encoder().seal(commit_at(step), ReusableBuffer())
    return dict(sealed.facts), np.frombuffer(bytes(sealed.state), np.uint8)


def test_a_late_copy_spoils_nothing_of_a_new_origin(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        hurdle, node = Hurdle(monkeypatch), make_node()
        late = asyncio.ensure_future(node.store.hold(*copy_of(100)))
        await hurdle.begun()
        lease = await node.store.lease()
        write(lease, 101)
        await node.store.commit(lease.number)
        hurdle.waiting[0].set()
        await late
        assert await node.store.holding() == StoredStep(101, is_origin=True)
        assert await node.newest() == 101
        assert await node.store.flush() is None
        assert node.uploads.files.steps() == [101], "its upload is not forgotten"

    asyncio.run(scene())


def test_of_two_copies_at_once_the_later_one_stays(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        hurdle, node = Hurdle(monkeypatch), make_node()
        first = asyncio.ensure_future(node.store.hold(*copy_of(100)))
        await hurdle.begun()
        second = asyncio.ensure_future(node.store.hold(*copy_of(101)))
        await hurdle.begun()
        hurdle.waiting[1].set()
        await second
        hurdle.waiting[0].set()
        await first
        assert await node.newest() == 101
        assert len(node.store._slots) == 2

    asyncio.run(scene())


def test_a_python_that_cannot_watch_a_process_does_not_trust_it_to_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert not SharedBufferClient(os.getpid()).is_alive


def test_storage_that_refuses_is_told_at_a_flush(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: CheckpointFiles, sealed: EncodedCheckpoint) -> None:
        raise PermissionError("not yours")

    async def scene() -> None:
        node = make_node()
        monkeypatch.setattr(CheckpointFiles, "write", refuse)
        await node.save(1)
        error = await node.store.flush()
        assert isinstance(error, WriteFailed) and "not yours" in str(error) and node.uploads.files.uri in str(error)
        assert await node.newest() == 1

    asyncio.run(scene())
