"""Numbers of a scoring run for people: one row per worker, and one for all."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.llm.score.pool.counters import WorkerTotals
from forebay.llm.score.result import ScoreResult
from forebay.runtime.formatting import count_text, seconds_text

COLUMNS = ("worker", "rows", "errors", "tokens in", "tokens out", "requests/s", "out tokens/s", "busy s")


def worker_rows(result: ScoreResult) -> list[tuple[str, ...]]:
    """Rows of the table. Rates of a worker are per second in which it scored, those of all per second of the run."""
    rows = [_row(each.name, each, each.busy_s) for each in result.workers]
    return [*rows, _row("all", _sum(result.workers), result.seconds)]


def _sum(workers: Sequence[WorkerTotals]) -> WorkerTotals:
    return WorkerTotals(
        name="all",
        rows=sum(each.rows for each in workers),
        errors=sum(each.errors for each in workers),
        input_tokens=sum(each.input_tokens for each in workers),
        output_tokens=sum(each.output_tokens for each in workers),
        busy_s=sum(each.busy_s for each in workers),
    )


def _row(name: str, totals: WorkerTotals, seconds: float) -> tuple[str, ...]:
    return (
        name,
        f"{totals.rows:,}",
        f"{totals.errors:,}",
        count_text(totals.input_tokens),
        count_text(totals.output_tokens),
        _rate(totals.rows, seconds),
        _rate(totals.output_tokens, seconds),
        seconds_text(totals.busy_s),
    )


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:.1f}" if seconds and count / seconds < 100 else count_text(count / max(seconds, 1e-9))
