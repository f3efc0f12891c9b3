"""Checkpoints in parts, from memory to storage.

The memory is of rank 0's node.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import torch
from tests.unit.training.checkpoint.store_laws import in_parts

from forebay.errors import WriteFailed
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.checkpoint import Encoder, decode
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.memory_store import MemoryStore
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, write_part
from forebay.training.checkpoint.shared_buffer import SharedBufferWriter, read_shared_buffer
from forebay.training.checkpoint.uploader import RETRY_S, Uploader

PATIENCE_S = 60.0


@pytest.fixture
def config(tmp_path: Path) -> CheckpointConfig:
    return CheckpointConfig(uri=str(tmp_path / "checkpoints"), storage_every_s=1e6)


def part_at(step: int) -> tuple[PartReceipt, bytes]:
    chunks = {
        "model.rows": LocalChunk(shape=(4,), offsets=(0,), values=torch.full((4,), float(step))),
        "model.bias": LocalChunk(shape=(1,), offsets=(0,), values=torch.ones(1)),
    }
    buffer = ReusableBuffer()
    receipt = write_part(1, chunks, buffer)
    return receipt, bytes(buffer.written())


def encoded_at(step: int, buffer: ReusableBuffer) -> EncodedCheckpoint:
    receipt, _ = part_at(step)
    return Encoder().encode(in_parts(step, [receipt]), buffer, [receipt])


def test_the_head_before_the_newest_is_kept_while_there_are_parts(config: CheckpointConfig) -> None:
    async def scene() -> None:
        async def alone(_encoded: EncodedCheckpoint) -> None: ...

        store = MemoryStore(Uploader(config, lambda _encoded, _config: False), alone)
        handle = await store.acquire()
        for step in range(1, 6):
            writer = SharedBufferWriter(handle.path)
            writer.finish(encoded_at(step, writer))
            handle = await store.keep(handle.number)
            held = await store.stored_step()
            assert held is not None
            assert (held.step, held.before) == (step, step - 1 or None)
            for asked, found in ((None, step), (step, step), (step - 1, max(step - 1, 1))):
                shown = await store.locate(asked)
                assert shown is not None
                metadata, path = shown
                kept = decode(read_shared_buffer(path, metadata), path)
                assert kept.step == found and not kept.parts
                fetched = await store.fetch({0}, asked)
                assert fetched is not None and fetched[0]["step"] == found
        assert len(store._buffers) <= 4
        await store.yield_storage(3)
        assert await store.stored_step() is None
        store._uploader.close()

    asyncio.run(scene())


def test_parts_are_in_storage_before_their_checkpoint_and_those_that_gave_way_are_left_out(
    config: CheckpointConfig,
) -> None:
    files, superseded = CheckpointFiles(config), [2, 3]

    def upload_parts(encoded: EncodedCheckpoint, _config: CheckpointConfig) -> bool:
        assert encoded.step not in files.complete_steps()
        if encoded.step in superseded:
            return False
        receipt, content = part_at(encoded.step)
        files.write_part(encoded.step, 1, content)
        return files.has_part(encoded.step, receipt.facts)

    uploads = Uploader(config, upload_parts)
    uploads.offer(encoded_at(2, ReusableBuffer()))
    time.sleep(0.1)
    uploads.offer(encoded_at(4, ReusableBuffer()))
    deadline = time.monotonic() + RETRY_S + PATIENCE_S
    while files.complete_steps() != [4]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stored = files.read(4)
    stored.verify()
    assert stored.shards.keys() == {0, 1}
    uploads.enqueue(encoded_at(3, ReusableBuffer()))
    with pytest.raises(WriteFailed, match="parts of the checkpoint of step 3 are lost"):
        uploads.flush()
    assert files.complete_steps() == [4]
    uploads.close()


def test_a_smaller_world_leaves_no_part_of_a_larger_one(config: CheckpointConfig) -> None:
    files = CheckpointFiles(config)
    receipt, content = part_at(1)
    for number in (1, 2, 3):
        files.write_part(1, number, content)
    files.write(encoded_at(1, ReusableBuffer()))
    assert files.complete_steps() == [1]
    names = sorted(path.name for path in (Path(config.uri) / "step-000000001").iterdir())
    assert names == ["checkpoint.json", "part-00001", "shard-00000.pt"]
    files.write_part(1, 1, content[:-1])
    assert files.complete_steps() == [], "a part that is written again makes the checkpoint incomplete"
    assert not files.has_part(1, receipt.facts)
