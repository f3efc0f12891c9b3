from __future__ import annotations

import numpy as np
import pytest

from forebay.llm.score.pool.schedule import PieceSchedule
from forebay.llm.score.shards import Piece, ShardLayout

LAYOUT = ShardLayout(rows=95, shard_rows=10)


def shards_taken(schedule: PieceSchedule, worker: int, count: int) -> list[int]:
    taken = []
    for _ in range(count):
        piece = schedule.take(worker)
        assert piece is not None
        taken.append(piece.shard)
        assert schedule.finished(worker)
    return taken


def test_each_worker_begins_with_its_own_range_and_then_helps_the_slowest() -> None:
    schedule = PieceSchedule(range(10), LAYOUT, workers=2)
    assert schedule.take("slow") == LAYOUT.piece(0)
    assert shards_taken(schedule, 1, 5) == [5, 6, 7, 8, 9]
    assert shards_taken(schedule, 1, 2) == [3, 4]
    assert shards_taken(schedule, 1, 2) == [2, 1]
    assert schedule.take(1) is None
    assert not schedule.is_done
    assert schedule.finished("slow")
    assert schedule.is_done


def test_range_of_a_lost_worker_is_taken_over_and_its_shard_repeated_first() -> None:
    schedule = PieceSchedule(range(10), LAYOUT, workers=2)
    assert shards_taken(schedule, "a", 1) == [0]
    schedule.take("a")
    assert schedule.lost("a") is None
    assert shards_taken(schedule, "b", 5) == [1, 2, 3, 4, 5]


def test_late_worker_joins() -> None:
    schedule = PieceSchedule(range(10), LAYOUT, workers=1)
    assert shards_taken(schedule, "a", 2) == [0, 1]
    assert shards_taken(schedule, "late", 4) == [6, 7, 8, 9]
    assert shards_taken(schedule, "a", 4) == [2, 3, 4, 5]
    assert schedule.is_done


def test_row_that_ends_its_worker_is_found_and_all_others_are_scored() -> None:
    schedule, scored, marked, deaths = PieceSchedule(range(10), LAYOUT, workers=1), [], [], 0
    worker, ended = 0, []
    while (piece := schedule.take(worker)) is not None:
        if 37 in range(piece.start, piece.stop):
            deaths += 1
            row = schedule.lost(worker)
            worker += 1
            if row is not None:
                marked.append(row)
                if schedule.marked(row):
                    ended.append(row.shard)
            continue
        assert schedule.is_whole(piece) == (piece.shard != 3)
        scored += range(piece.start, piece.stop)
        if schedule.finished(worker):
            ended.append(piece.shard)
    assert schedule.is_done
    assert marked == [Piece(shard=3, start=37, stop=38)]
    assert sorted([*scored, 37]) == list(range(95))
    assert sorted(ended) == list(range(10))
    assert deaths <= 2 + 4 + 1


@pytest.mark.parametrize("seed", range(20))
def test_random_losses_lose_and_double_no_row(seed: int) -> None:
    """Workers are lost at random, join, and answer in any order."""
    random = np.random.default_rng(seed)
    shards = sorted(random.choice(10, size=8, replace=False).tolist())
    schedule, workers, number = PieceSchedule(shards, LAYOUT, workers=3), [0, 1, 2], 3
    busy: dict[int, Piece] = {}
    scored: list[int] = []
    ended: list[int] = []
    while not schedule.is_done:
        for worker in workers:
            if worker not in busy and (piece := schedule.take(worker)) is not None:
                busy[worker] = piece
        worker = random.choice(list(busy))
        piece = busy.pop(worker)
        if random.random() < 0.3:
            workers.remove(worker)
            workers.append(number)
            number += 1
            row = schedule.lost(worker)
            if row is not None:
                scored.append(row.start)
                if schedule.marked(row):
                    ended.append(row.shard)
            continue
        scored += range(piece.start, piece.stop)
        if schedule.finished(worker):
            ended.append(piece.shard)
    expected = [row for shard in shards for row in range(LAYOUT.piece(shard).start, LAYOUT.piece(shard).stop)]
    assert sorted(scored) == expected
    assert sorted(ended) == shards
