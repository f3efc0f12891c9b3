"""Actor of the pool: one engine in a process of its own. Used by Ray, but free of it."""

from __future__ import annotations

import os
import traceback
from typing import TypeVar

import pyarrow as pa

from forebay.errors import ForebayError, ScoringFailed
from forebay.llm.score.shard_scorer import PieceReport, ShardScorer
from forebay.llm.score.shards import Piece
from forebay.runtime.foreign_code import CallOutcome, outcome_of
from forebay.runtime.pickling import unpickled

T = TypeVar("T")


class ScoreActor:
    """Scores pieces. Its methods return outcomes: an exception of the process itself means that it is lost."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._scorer: ShardScorer | None = None

    def open(self) -> CallOutcome[int]:
        """Open the engine. Returns the id of the process."""

        def opened() -> int:
            self._scorer = ShardScorer(unpickled(self._payload))
            self._scorer.open()
            return os.getpid()

        return _portable(outcome_of(opened))

    def score(self, piece: Piece, is_whole: bool) -> CallOutcome[tuple[pa.Table | None, PieceReport]]:
        """Score a piece: write a whole shard, or return the table of a part."""
        scorer = self._scorer
        assert scorer is not None
        if is_whole:
            return _portable(outcome_of(lambda: (None, scorer.write(piece))))
        return _portable(outcome_of(lambda: scorer.table(piece)))


def _portable(outcome: CallOutcome[T]) -> CallOutcome[T]:
    """The same outcome, with an error that any process can raise."""
    error = outcome.error
    if error is None or isinstance(error, ForebayError):
        return outcome
    text = "".join(traceback.format_exception(error))
    return CallOutcome(error=ScoringFailed(f"a worker failed: {type(error).__name__}: {error}\n{text}"))
