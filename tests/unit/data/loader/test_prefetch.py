"""Blocks are requested before they are needed, within the budget, and released after use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.data.loader.prefetch import Prefetcher
from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.plan import build_plan
from forebay.data.transform.block import Block
from forebay.world import World

ROW_BYTES = 10


class RequestRecorder:
    """Records requests."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def request(self, index: int) -> Future[Block]:
        self.asked.append(index)
        return Future()


def learn(demand: Prefetcher, rows: int, row_bytes: int = ROW_BYTES) -> None:
    demand.record_block_size(Block(rows, {"x": np.zeros((rows, row_bytes), np.uint8)}))


def ahead_bytes(demand: Prefetcher) -> int:
    """Estimated bytes of the blocks that were requested ahead of need."""
    return demand._ahead_rows * demand._known_bytes // max(demand._known_rows, 1)


def window_bytes(demand: Prefetcher) -> int:
    """Estimated bytes of the blocks of the current windows."""
    return (demand._held_rows - demand._ahead_rows) * demand._known_bytes // max(demand._known_rows, 1)


@settings(max_examples=80)
@example(rows=[1, 10, 27, 1, 5, 1, 36], lanes=1, shuffle_rows=1, rank=0, budget=0, most=380, start=0)
@given(
    rows=st.lists(st.integers(1, 60), min_size=1, max_size=15),
    lanes=st.integers(1, 6),
    shuffle_rows=st.integers(1, 50),
    rank=st.integers(0, 5),
    budget=st.integers(0, 2000),
    most=st.integers(0, 4000),
    start=st.integers(0, 40),
)
def test_the_needed_is_there_and_the_rest_within_budget(
    memory_manifest: Callable[..., Manifest],
    rows: list[int],
    lanes: int,
    shuffle_rows: int,
    rank: int,
    budget: int,
    most: int,
    start: int,
) -> None:
    manifest = memory_manifest(rows)
    plan = build_plan(manifest, seed=1, lanes=lanes, shuffle_rows=shuffle_rows)
    owned = plan.owned_lanes(World(rank=rank % lanes, size=lanes))
    recorder, held = RequestRecorder(), set[int]()
    position = min(start, plan.num_rows - 1)
    demand = Prefetcher(plan, recorder, start=(2, position), lanes=owned, budget_bytes=budget, most_bytes=most)
    while size := plan.batch_size(position, 16):
        before = len(recorder.asked)
        held -= set(demand.advance(position, position + size))
        held |= set(recorder.asked[before:])
        assert all(demand.is_needed(block) for block in held)
        assert set(plan.rows(2, position, position + size, owned).block.tolist()) <= held
        limit = max(budget, min(most, window_bytes(demand)))
        # Blocks that were asked for before stay, though the windows have shrunk since.
        is_asked_now = any(span.block in recorder.asked[before:] for span in demand._ahead)
        assert 0 <= ahead_bytes(demand) <= limit or len(demand._ahead) <= 2 or not is_asked_now
        learn(demand, 1 + size)
        position += size
    held -= set(demand.advance(plan.num_rows + lanes * plan.num_rows, 0))
    assert not held
    assert (len(demand._ahead), ahead_bytes(demand), demand._held_rows) == (0, 0, 0)


def test_the_next_window_is_asked_for_while_this_one_is_used(memory_manifest: Callable[..., Manifest]) -> None:
    """All lanes come to their next windows at one position: the trainer would wait for all of their blocks at once."""
    plan = build_plan(memory_manifest([10] * 400), seed=1, lanes=4, shuffle_rows=200)
    lanes, recorder = plan.owned_lanes(World()), RequestRecorder()
    demand = Prefetcher(plan, recorder, start=(0, 0), lanes=lanes, budget_bytes=2 * 10 * ROW_BYTES, most_bytes=1 << 30)
    missing, size = [], 40
    for position in range(0, plan.num_rows, size):
        asked = set(recorder.asked)
        if position:
            missing.append(len(set(plan.rows(0, position, position + size, lanes).block.tolist()) - asked))
        demand.advance(position, position + size)
        learn(demand, size)
    # By the time of the first full window, and of each later one, its blocks were on their way.
    assert sum(missing[len(missing) // 4 :]) == 0
    assert max(missing) > 2, "while the windows grow, each is twice as large as the one before"


def test_a_block_is_asked_for_once_per_stay(memory_manifest: Callable[..., Manifest]) -> None:
    plan = build_plan(memory_manifest([50] * 8), seed=1, lanes=1, shuffle_rows=20)
    recorder = RequestRecorder()
    demand = Prefetcher(plan, recorder, start=(0, 0), lanes=range(1), budget_bytes=1 << 30)
    for position in range(0, 400, 10):
        demand.advance(position, position + 10)
        learn(demand, 1)
    assert sorted(recorder.asked) == list(range(8))


def test_read_ahead_is_measured_in_what_blocks_take(memory_manifest: Callable[..., Manifest]) -> None:
    """The manifest says 8 bytes a row. Blocks may take a hundred times that, or a hundredth."""
    plan = build_plan(memory_manifest([100] * 50), seed=1, lanes=1, shuffle_rows=100)
    asked = {}
    for row_bytes in (1, 100):
        recorder = RequestRecorder()
        demand = Prefetcher(plan, recorder, start=(0, 0), lanes=range(1), budget_bytes=30_000)
        demand.advance(0, 10)
        first = len(recorder.asked)
        assert len(demand._ahead) == 2, "nothing is known yet: two, so that the next is under way"
        learn(demand, 100, row_bytes)
        demand.request_ahead()  # without a wait for the rest of what is needed now
        asked[row_bytes] = len(recorder.asked) - first
    assert asked == {1: 47, 100: 1}
