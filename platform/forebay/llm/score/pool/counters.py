"""Counters of a running scoring run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from forebay.errors import ScoringFailed
from forebay.llm.score.shard_scorer import PieceReport
from forebay.runtime.formatting import count_text, rate_text, time_text

TELL_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTotals:
    """Counters of one worker.

    `busy_s` are the seconds in which it scored.
    """

    name: str
    shards: int = 0
    rows: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    busy_s: float = 0.0

    def plus(self, report: PieceReport, *, ends_shard: bool) -> WorkerTotals:
        """Counters with a piece added."""
        return replace(
            self,
            shards=self.shards + ends_shard,
            rows=self.rows + report.piece.num_rows,
            errors=self.errors + report.errors,
            input_tokens=self.input_tokens + report.input_tokens,
            output_tokens=self.output_tokens + report.output_tokens,
            busy_s=self.busy_s + report.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreProgress:
    """Progress of a run.

    `rows_done` of `rows` rows have an answer, of which `rows_before` had one at the start.
    """

    rows: int
    rows_before: int
    rows_done: int
    errors: int
    output_tokens: int
    workers: int
    seconds: float

    @property
    def left_s(self) -> float | None:
        """Estimated seconds left. None before the first rows."""
        scored = self.rows_done - self.rows_before
        return (self.rows - self.rows_done) * self.seconds / scored if scored else None

    def __str__(self) -> str:
        scored = self.rows_done - self.rows_before
        rate = scored / self.seconds if scored and self.seconds else None
        parts = [f"{self.rows_done:,} of {self.rows:,} rows", rate_text(rate)]
        if self.output_tokens:
            parts.append(f"{count_text(self.output_tokens / self.seconds)} tokens/s")
        if self.errors:
            parts.append(f"{self.errors:,} errors")
        parts += [f"{self.workers} worker{'s' * (self.workers != 1)}", f"{time_text(self.left_s)} left"]
        return ", ".join(parts)


ProgressListener = Callable[[ScoreProgress], None]


class RunCounters:
    """Counters of a run.

    Sends the progress to `listener`, at most twice a second.
    """

    def __init__(self, rows: int, rows_before: int, max_errors: int | None, listener: ProgressListener) -> None:
        self._rows, self._rows_before, self._max_errors = rows, rows_before, max_errors
        self._listener = listener
        self._began = self._sent = time.monotonic()
        self._by_worker: dict[str, WorkerTotals] = {}
        self.workers = 0
        """Workers whose engine is open."""
        self.lost = 0
        """Workers that were lost."""

    @property
    def totals(self) -> tuple[WorkerTotals, ...]:
        """Counters of each worker, by their first piece."""
        return tuple(self._by_worker.values())

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def add(self, worker: str, report: PieceReport, *, ends_shard: bool) -> None:
        """Count a piece.

        Raises `ScoringFailed` if there are more errors than allowed.
        """
        before = self._by_worker.get(worker, WorkerTotals(name=worker))
        self._by_worker[worker] = before.plus(report, ends_shard=ends_shard)
        errors = sum(each.errors for each in self.totals)
        if self._max_errors is not None and errors > self._max_errors:
            raise ScoringFailed(
                f"{errors} rows have an error, and max_errors={self._max_errors}. The newest: {report.error}. Correct "
                "the rows or the arguments, or raise max_errors. What is written is kept.",
                errors=errors,
                error=report.error,
            )
        self.tell()

    def tell(self, *, at_once: bool = False) -> None:
        """Send the progress, unless it was sent just before."""
        now = time.monotonic()
        if at_once or now - self._sent >= TELL_EVERY_S:
            self._sent = now
            self._listener(self._progress())

    def _progress(self) -> ScoreProgress:
        return ScoreProgress(
            rows=self._rows,
            rows_before=self._rows_before,
            rows_done=self._rows_before + sum(each.rows for each in self.totals),
            errors=sum(each.errors for each in self.totals),
            output_tokens=sum(each.output_tokens for each in self.totals),
            workers=self.workers,
            seconds=self.seconds,
        )
