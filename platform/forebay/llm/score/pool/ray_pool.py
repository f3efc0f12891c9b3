"""Pool of engines on a Ray cluster, one actor each.

Actors may join late, and may be lost.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from forebay.errors import EngineFailed, ForebayError, ScoringFailed
from forebay.llm.score.answer_folder import CutShards
from forebay.llm.score.pool.counters import RunCounters
from forebay.llm.score.pool.schedule import PieceSchedule
from forebay.llm.score.shard_scorer import PieceReport, ScoreSpec, ShardScorer
from forebay.llm.score.shards import Piece
from forebay.runtime.foreign_code import CallOutcome, outcome_of
from forebay.runtime.pickling import pickled, unpickled

T = TypeVar("T")


class ScoreActor:
    """Actor that scores pieces.

    Its methods return outcomes: an exception of the process itself means that it is lost.
    """

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._scorer: ShardScorer | None = None

    def open(self) -> CallOutcome[int]:
        """Open the engine. Returns the id of the process."""

        def opened() -> int:
            self._scorer = ShardScorer(unpickled(self._payload))
            self._scorer.open()
            return os.getpid()

        return _portable(opened)

    def score(self, piece: Piece, is_whole: bool) -> CallOutcome[tuple[pa.Table | None, PieceReport]]:
        """Score a piece.

        Writes a whole shard, or returns the table of a part.
        """
        scorer = self._scorer
        assert scorer is not None
        if is_whole:
            return _portable(lambda: (None, scorer.write(piece)))
        return _portable(lambda: scorer.table(piece))


def _portable(call: Callable[[], T]) -> CallOutcome[T]:
    """Call, and replace an error that other processes cannot unpickle."""
    outcome = outcome_of(call)
    error = outcome.error
    if error is None or isinstance(error, ForebayError):
        return outcome
    text = "".join(traceback.format_exception(error))
    return CallOutcome(error=ScoringFailed(f"a worker failed: {type(error).__name__}: {error}\n{text}"))


_TURN_S = 0.5
_MOST_LOST_AT_START = 5
"""Actors that may be lost one after the other while they open their engine."""


@dataclass(slots=True, eq=False)
class _PoolActor:
    """One actor and its piece.

    None while it opens its engine. `is_idle`: it waits for a piece.
    """

    handle: ActorHandle
    number: int
    piece: Piece | None = None
    is_idle: bool = False

    @property
    def name(self) -> str:
        return f"worker {self.number}"


class RayPool:
    """Actors that score the pieces of a schedule.

    `resources` are the `num_cpus` and `num_gpus` of one actor.

    As many actors as `workers` are requested. Those that find room begin; the others join when the cluster has room.
    """

    def __init__(
        self, spec: ScoreSpec, schedule: PieceSchedule, counters: RunCounters, resources: dict[str, float]
    ) -> None:
        self._spec, self._schedule, self._counters = spec, schedule, counters
        self._cut = CutShards(spec.folder)
        self._payload = ray.put(pickled(spec))
        self._new_actor = ray.remote(ScoreActor).options(scheduling_strategy="SPREAD", **resources)
        self._waiting: dict[ray.ObjectRef, _PoolActor] = {}
        self._idle: list[_PoolActor] = []
        self._num_started = self._num_lost_at_start = 0

    def run(self, workers: int) -> None:
        """Score all pieces.

        Raises the errors of `ShardScorer`, and `ScoringFailed` if no engine can be opened.
        """
        try:
            for _ in range(workers):
                self._start()
            while not self._schedule.is_done:
                ready, _ = ray.wait(list(self._waiting), num_returns=1, timeout=_TURN_S)
                for answer in ready:
                    self._answered(answer, self._waiting.pop(answer))
                self._counters.tell()
        finally:
            for actor in [*self._waiting.values(), *self._idle]:
                ray.kill(actor.handle)

    def _start(self) -> None:
        self._num_started += 1
        actor = _PoolActor(handle=self._new_actor.remote(self._payload), number=self._num_started)
        self._waiting[actor.handle.open.remote()] = actor

    def _answered(self, answer: Any, actor: _PoolActor) -> None:
        try:
            outcome = ray.get(answer)
        except RayActorError as error:
            self._lost(actor, f"its process ended ({str(error).partition(chr(10))[0]})")
            return
        if isinstance(outcome.error, EngineFailed):
            ray.kill(actor.handle)
            self._lost(actor, str(outcome.error))
            return
        value = outcome.result()
        if actor.piece is None:
            self._counters.workers += 1
            self._num_lost_at_start = 0
        else:
            table, report = value
            ends_shard = self._schedule.finished(actor.number)
            if table is not None:
                self._cut.keep(actor.piece, table, ends_shard=ends_shard)
            self._counters.add(actor.name, report, ends_shard=ends_shard)
        self._give(actor)

    def _give(self, actor: _PoolActor) -> None:
        actor.piece = self._schedule.take(actor.number)
        if actor.piece is None:
            self._idle.append(actor)
            return
        self._waiting[actor.handle.score.remote(actor.piece, self._schedule.is_whole(actor.piece))] = actor

    def _lost(self, actor: _PoolActor, why: str) -> None:
        self._counters.lost += 1
        if actor.piece is None:
            self._num_lost_at_start += 1
            if self._num_lost_at_start > _MOST_LOST_AT_START:
                raise ScoringFailed(
                    f"{self._num_lost_at_start} workers one after the other were lost while they opened their engine; "
                    f"the last one: {why}. Check that a worker has enough memory for the model."
                )
        else:
            self._counters.workers -= 1
        if (row := self._schedule.lost(actor.number)) is not None:
            self._mark(row, actor, why)
        self._start()
        # A piece of the lost worker may be what an idle one waits for.
        idle, self._idle = self._idle, []
        for each in idle:
            self._give(each)

    def _mark(self, row: Piece, actor: _PoolActor, why: str) -> None:
        table, report = ShardScorer(self._spec).marked(row, f"the engine was lost twice on this row: {why}")
        ends_shard = self._schedule.marked(row)
        self._cut.keep(row, table, ends_shard=ends_shard)
        self._counters.add(actor.name, report, ends_shard=ends_shard)
