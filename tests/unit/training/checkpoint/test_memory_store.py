"""A memory store on its node, without Ray.

With a worker that writes, a replica that takes copies, and storage.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.training.checkpoint.store_laws import checkpoint_at

from forebay.errors import Fenced, WriteFailed
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.checkpoint import Encoder, decode
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import Bytes, EncodedCheckpoint, Metadata
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.names import SavedStep
from forebay.training.checkpoint.memory_store import MemoryStore, StoredStep
from forebay.training.checkpoint.shared_buffer import (
    BufferHandle,
    SharedBuffer,
    SharedBufferClient,
    SharedBufferWriter,
    read_shared_buffer,
)
from forebay.training.checkpoint.uploader import Uploader


class StoreNode:
    """A store, its replica, and the worker beside it."""

    def __init__(self, folder: Path) -> None:
        self.uploads = Uploader(CheckpointConfig(uri=str(folder / "checkpoints"), storage_every_s=1e6, keep_every=50))
        self.store = MemoryStore(self.uploads, self._replicate)
        self.copies: list[int] = []
        self.way = asyncio.Event()
        self.way.set()
        self._handle: BufferHandle | None = None

    async def _replicate(self, encoded: EncodedCheckpoint) -> None:
        await self.way.wait()
        encoded.verify()
        self.copies.append(encoded.step)

    async def save(self, step: int, **state: Any) -> None:
        number = await self.write(step, **state)
        self._handle = await self.store.keep(number)

    async def write(self, step: int, **state: Any) -> int:
        """Write as a worker does, before it reports the checkpoint."""
        self._handle = self._handle or await self.store.acquire()
        write(self._handle, step, **state)
        return self._handle.number

    def another_worker(self) -> None:
        """Replace the worker, which has ended."""
        self._handle = None

    async def newest(self) -> int:
        shown = await self.store.locate()
        assert shown is not None
        metadata, path = shown
        commit = decode(read_shared_buffer(path, metadata), path)
        assert commit.shards[0]["weight"][0] == commit.step
        return commit.step


def write(handle: BufferHandle, step: int, **state: Any) -> None:
    writer = SharedBufferWriter(handle.path)
    writer.finish(Encoder().encode(checkpoint_at(step, **state), writer))


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
        assert await node.store.stored_step() is None and await node.store.locate() is None
        for step in range(1, 8):
            await node.save(step)
            assert await node.newest() == step
            assert await node.store.stored_step() == StoredStep(step, is_origin=True)
        assert node.copies == list(range(1, 8))
        assert len(node.store._buffers) <= 3

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


@pytest.mark.parametrize("ask", ["stored_step", "locate", "fetch", "flush", "acquire"])
def test_a_commit_is_there_before_its_worker_has_said_so(make_node: Callable[[], StoreNode], ask: str) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        number = await node.write(2)
        await getattr(node.store, ask)()
        assert node.store._newest is not None and node.store._newest.step == 2
        if ask == "flush":
            assert node.uploads.files.steps()[0] == 2
        node._handle = await node.store.keep(number)
        await node.save(3)
        assert await node.newest() == 3
        assert node.copies == [1, 2, 3]
        assert len(node.store._buffers) <= 3

    asyncio.run(scene())


def test_what_a_worker_left_is_copied_before_the_next_one_goes_on(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        await node.write(2)
        assert await node.store.stored_step() == StoredStep(2, is_origin=True)
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
        assert 50 in node.uploads.files.complete_steps()

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
        waiting = asyncio.ensure_future(node.store.acquire())
        await asyncio.sleep(0)
        assert node.uploads.in_use() != []
        await node.store.yield_storage(9)
        assert await node.newest() == 8, "in case that fails"
        files = node.uploads.files
        files.write(Encoder().encode(checkpoint_at(9), ReusableBuffer()))
        assert await node.store.flush() is None
        assert node.uploads.is_done and files.steps()[0] == 9
        node.way.set()
        await waiting
        await node.store.yield_storage(5)
        assert await node.store.stored_step() is None, "a future that was given up"

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
        await node.store.keep(late)
        assert await node.newest() == 3, "found in the slot of the worker that is there"
        node._handle = await node.store.keep(number)
        await node.save(4)
        assert await node.newest() == 4

    asyncio.run(scene())


def test_a_worker_that_is_slow_to_die_writes_nothing_into_the_slot_of_the_next(
    make_node: Callable[[], StoreNode],
) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        old = await node.store.acquire()
        late = SharedBufferWriter(old.path)
        node.another_worker()
        number = await node.write(2)
        late.finish(Encoder().encode(checkpoint_at(90), late))
        assert await node.newest() == 2
        node._handle = await node.store.keep(number)
        await node.store.keep(old.number)
        assert await node.newest() == 2

    asyncio.run(scene())


def test_another_worker_that_only_looks_takes_nothing_from_the_one_that_is_there(
    make_node: Callable[[], StoreNode],
) -> None:
    async def scene() -> None:
        node = make_node()
        for step in (1, 2, 3):
            await node.save(step)
            await node.store.acquire()
            assert await node.newest() == step
        assert len(node.store._buffers) <= 4

    asyncio.run(scene())


def test_a_seal_without_its_state_is_no_commit(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(1)
        await node.write(2)
        assert node._handle is not None
        SharedBufferWriter(node._handle.path).write(os.urandom(500))
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
        assert node._handle is not None
        SharedBufferWriter(node._handle.path).write(os.urandom(5000))
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

        def slow(files: CheckpointFiles, encoded: EncodedCheckpoint) -> None:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            encoded.verify()
            original(files, encoded)

        monkeypatch.setattr(CheckpointFiles, "write", slow)
        await node.save(1)
        await begun.wait()
        for step in range(2, 12):
            await node.save(step)
        go_on.set()
        assert await node.store.flush() is None
        assert node.uploads.files.steps() == [11, 1]
        assert len(node.store._buffers) <= 4

    asyncio.run(scene())


def test_a_copy_is_held_given_away_and_flushed(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        origin, copy = make_node(), make_node()
        for step in (5, 6):
            await origin.save(step)
            given = await origin.store.fetch()
            assert given is not None
            await copy.store.keep_copy(*given)
            assert await copy.store.stored_step() == StoredStep(step, is_origin=False)
            assert await copy.newest() == step
        assert max(StoredStep(6, is_origin=False), StoredStep(6, is_origin=True)).is_origin
        assert await copy.store.flush() is None
        assert copy.uploads.files.steps()[0] == 6

    asyncio.run(scene())


def test_a_copy_does_not_take_the_place_of_what_followed_it(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        origin, copy = make_node(), make_node()
        await origin.save(5)
        given = await origin.store.fetch()
        assert given is not None
        await copy.store.keep_copy(*given)
        await origin.save(6)
        assert await origin.store.flush() is None
        assert await copy.store.flush() is None
        files = origin.uploads.files
        assert files.steps()[0] == 6
        files._write(f"{files._folder(6)}/shard-00000.pt", b"torn")
        files._delete(files.names()[-1]) if 5 in files.steps() else None
        assert await copy.store.flush() is None
        assert files.steps() == [5], "what is torn is nothing"

    asyncio.run(scene())


def test_a_copy_is_newer_than_what_a_worker_left_before(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        node = make_node()
        await node.save(5)
        number = await node.write(6)
        await node.store.keep_copy(*copy_of(4))
        assert await node.newest() == 4
        node._handle = await node.store.keep(number)
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
        await node.store.keep_copy(*copy_of(100))
        node._handle = await node.store.keep(number)
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
            await node.store.acquire()
            await node.store.keep_copy(*copy_of(2))
            await node.store.keep_copy(*copy_of(3))
            assert node.store._buffers[late].read() is None, "3 is there"
        else:
            await node.save(3)
            assert node._handle is not None and node._handle.number == late
        await node.store.keep(late)
        assert await node.newest() == 3

    asyncio.run(scene())


def test_those_who_look_at_once_find_one_commit(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, original = threading.Barrier(2), EncodedCheckpoint.verify

    def verify(encoded: EncodedCheckpoint) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        original(encoded)

    async def scene() -> None:
        node = make_node()
        await node.write(1)
        monkeypatch.setattr(EncodedCheckpoint, "verify", verify)
        begun = node.store._last_ticket
        await asyncio.gather(*[asyncio.to_thread(node.store._adopt_unreported) for _ in range(2)])
        assert node.store._last_ticket == begun + 1

    asyncio.run(scene())


def test_one_that_was_origin_and_becomes_a_copy_uploads_no_more(make_node: Callable[[], StoreNode]) -> None:
    async def scene() -> None:
        old, new = make_node(), make_node()
        await old.save(1)
        assert await old.store.flush() is None
        await old.save(9)
        await new.save(2)
        given = await new.store.fetch()
        assert given is not None
        await old.store.keep_copy(*given)
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
        await node.store.keep_copy(*copy_of(10))

        def too_early(_step: int) -> bool:
            asyncio.run_coroutine_threadsafe(node.store.yield_storage(11), loop).result(60.0)
            files.write(Encoder().encode(checkpoint_at(11), ReusableBuffer()))
            return False

        monkeypatch.setattr(node.store, "_is_in_storage", too_early)
        assert await node.store.flush() is None
        assert files.steps() == [11]

    asyncio.run(scene())


class Hurdle:
    """Holds up the copies into a store.

    Each waits until the test releases it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[threading.Event] = []
        self._begun = threading.Semaphore(0)
        original = SharedBuffer.fill

        def fill(buffer: SharedBuffer, metadata: Metadata, shards: Mapping[int, Bytes]) -> EncodedCheckpoint:
            mine = threading.Event()
            self.waiting.append(mine)
            self._begun.release()
            assert mine.wait(60.0)
            return original(buffer, metadata, shards)

        monkeypatch.setattr(SharedBuffer, "fill", fill)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.acquire, timeout=60.0)


def copy_of(step: int) -> tuple[dict[str, Any], Any]:
    encoded = Encoder().encode(checkpoint_at(step), ReusableBuffer())
    return dict(encoded.metadata), {number: np.frombuffer(each, np.uint8) for number, each in encoded.shards.items()}


def test_a_late_copy_spoils_nothing_of_a_new_origin(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        hurdle, node = Hurdle(monkeypatch), make_node()
        late = asyncio.ensure_future(node.store.keep_copy(*copy_of(100)))
        await hurdle.begun()
        handle = await node.store.acquire()
        write(handle, 101)
        await node.store.keep(handle.number)
        hurdle.waiting[0].set()
        await late
        assert await node.store.stored_step() == StoredStep(101, is_origin=True)
        assert await node.newest() == 101
        assert await node.store.flush() is None
        assert node.uploads.files.steps() == [101], "its upload is not forgotten"

    asyncio.run(scene())


def test_of_two_copies_at_once_the_later_one_stays(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        hurdle, node = Hurdle(monkeypatch), make_node()
        first = asyncio.ensure_future(node.store.keep_copy(*copy_of(100)))
        await hurdle.begun()
        second = asyncio.ensure_future(node.store.keep_copy(*copy_of(101)))
        await hurdle.begun()
        hurdle.waiting[1].set()
        await second
        hurdle.waiting[0].set()
        await first
        assert await node.newest() == 101
        assert len(node.store._buffers) == 2

    asyncio.run(scene())


def test_a_python_that_cannot_watch_a_process_does_not_trust_it_to_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert not SharedBufferClient(os.getpid()).is_alive


def test_storage_that_refuses_is_told_at_a_flush(
    make_node: Callable[[], StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: CheckpointFiles, encoded: EncodedCheckpoint) -> None:
        raise PermissionError("not yours")

    async def scene() -> None:
        node = make_node()
        monkeypatch.setattr(CheckpointFiles, "write", refuse)
        await node.save(1)
        error = await node.store.flush()
        assert isinstance(error, WriteFailed) and "not yours" in str(error) and node.uploads.files.uri in str(error)
        assert await node.newest() == 1

    asyncio.run(scene())


def test_memory_of_a_fenced_attempt_is_written_only_as_a_checkpoint_of_its_successor(
    make_node: Callable[[], StoreNode], tmp_path: Path
) -> None:
    """Its driver was killed, and the later attempt is on its cluster."""
    claim = tmp_path / "000002.json"
    first = CheckpointConfig(uri=str(tmp_path / "late"), attempt=1, next_claim=str(claim), storage_every_s=1e6)
    second = CheckpointConfig(uri=first.uri, attempt=2, restorable=frozenset())

    async def scene() -> None:
        node = make_node()
        node.store._uploader = Uploader(first)
        assert await node.store.flush(second) is None, "it has nothing"
        claim.write_text("{}")
        await node.save(3)
        assert isinstance(await node.store.flush(), Fenced)
        assert await node.store.flush(second) is None
        assert CheckpointFiles(second).names() == [SavedStep(2, 3)]
        assert await node.store.flush(second) is None, "asked again"
        node.store._uploader.close()

    asyncio.run(scene())
