from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.unit.training.checkpoint.store_laws import chunk_of

from forebay.training.checkpoint.part_buffers import NUM_BUFFERS, PartBuffers
from forebay.training.checkpoint.parts.part import PartReceipt
from forebay.training.checkpoint.shared_buffer import SharedBuffer

PATIENCE_S = 60.0


@pytest.fixture
def rank() -> Iterator[PartBuffers]:
    with closing(PartBuffers()) as rank:
        yield rank


def opened(receipt: PartReceipt) -> SharedBuffer:
    """Memory of a part, as another process opens it."""
    return SharedBuffer(0, os.open(receipt.path, os.O_RDWR))


def test_another_process_finds_exactly_the_part_of_a_receipt(rank: PartBuffers) -> None:
    receipt = rank.write(1, 1, chunk_of(1, 1))
    opened(receipt).take()
    later = rank.write(2, 1, chunk_of(2, 1))
    found = opened(receipt).part(1, receipt.facts)
    assert found is not None and len(found) == receipt.num_bytes
    assert opened(receipt).part(2, receipt.facts) is None
    assert opened(receipt).part(1, later.facts) is None
    opened(receipt).clear()
    assert opened(receipt).part(1, receipt.facts) is None


def test_only_a_part_that_was_taken_keeps_its_memory(rank: PartBuffers) -> None:
    """Another belongs to no checkpoint: a rank failed."""
    receipts = [rank.write(step, 1, chunk_of(step, 1)) for step in (7, 7, 8)]
    assert len({each.path for each in receipts}) == 1
    opened(receipts[2]).take()
    assert rank.write(8, 1, chunk_of(8, 1)).path != receipts[2].path, "the same step again, while it is written"
    assert opened(receipts[2]).part(8, receipts[2].facts) is not None


def test_a_store_that_is_closed_waits_no_longer_for_memory(rank: PartBuffers) -> None:
    for step in range(NUM_BUFFERS):
        opened(rank.write(step, 1, chunk_of(step, 1))).take()
    found: list[str] = []

    def third() -> None:
        try:
            rank.write(NUM_BUFFERS, 1, chunk_of(NUM_BUFFERS, 1))
        except OSError as error:
            found.append(str(error))

    waiting = threading.Thread(target=third)
    waiting.start()
    rank.close()
    waiting.join(PATIENCE_S)
    assert found == ["its store was closed while it waited for memory"]
