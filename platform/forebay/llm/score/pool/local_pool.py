"""Pool of one engine, in this process."""

from __future__ import annotations

from forebay.data.preparation.progress import tell
from forebay.errors import EngineFailed
from forebay.llm.score.answer_folder import CutShards
from forebay.llm.score.pool.counters import RunCounters
from forebay.llm.score.pool.schedule import PieceSchedule
from forebay.llm.score.shard_scorer import ScoreSpec, ShardScorer
from forebay.llm.score.shards import Piece

NAME = "here"


def score_here(spec: ScoreSpec, schedule: PieceSchedule, counters: RunCounters) -> None:
    """Score all pieces in this process.

    An engine that fails is opened again.

    Raises `EngineFailed` for one that fails before it has answered anything, and the errors of `ShardScorer`.
    """
    tell("opening the model: the first rows come once it is loaded")
    scorer, cut, number, has_answered = ShardScorer(spec), CutShards(spec.folder), 0, False
    counters.workers = 1
    try:
        while (piece := schedule.take(number)) is not None:
            try:
                _score(scorer, piece, schedule, (cut, counters), number)
            except EngineFailed as error:
                if not has_answered and number:
                    raise
                scorer.close()
                number, counters.lost = number + 1, counters.lost + 1
                if (row := schedule.lost(number - 1)) is not None:
                    table, report = scorer.marked(row, f"the engine failed twice on this row: {error}")
                    ends_shard = schedule.marked(row)
                    cut.keep(row, table, ends_shard=ends_shard)
                    counters.add(NAME, report, ends_shard=ends_shard)
            else:
                has_answered = True
    finally:
        scorer.close()


def _score(
    scorer: ShardScorer, piece: Piece, schedule: PieceSchedule, books: tuple[CutShards, RunCounters], number: int
) -> None:
    cut, counters = books
    if schedule.is_whole(piece):
        report = scorer.write(piece)
        ends_shard = schedule.finished(number)
    else:
        table, report = scorer.table(piece)
        ends_shard = schedule.finished(number)
        cut.keep(piece, table, ends_shard=ends_shard)
    counters.add(NAME, report, ends_shard=ends_shard)
