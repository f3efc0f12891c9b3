"""Table and page of a scoring run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from forebay.llm.score.pool.counters import WorkerTotals
from forebay.llm.score.result import ScoreResult
from forebay.report.elements import facts as listed
from forebay.report.elements import row, section, table
from forebay.report.page import document, fragment
from forebay.report.page import write_page as write
from forebay.runtime.formatting import count_text, seconds_text, time_text
from forebay.storage.filesystem import below, resolve

COLUMNS = ("worker", "rows", "errors", "tokens in", "tokens out", "requests/s", "out tokens/s", "busy s")
FILE_NAME = "scores.html"
_DIGEST, _SHOWN = re.compile(r"[0-9a-f]{32,}"), 12


def write_page(result: ScoreResult, names: Mapping[str, str], facts: Mapping[str, object]) -> str:
    """Write the page into the folder of the answers.

    Returns its URI. Raises `WriteFailed`.

    `names` has the model and the data, `facts` the plan.
    """
    return write(below(result.folder, FILE_NAME), page_of(result, names, facts), "The page of the scoring run")


def has_page(folder: str) -> bool:
    """Whether the folder of answers has its page.

    A run may be killed after its last answers.
    """
    page = resolve(below(folder, FILE_NAME))
    return bool(page.fs.get_file_info(page.path).type)


def page_of(result: ScoreResult, names: Mapping[str, str], facts: Mapping[str, object]) -> str:
    """HTML of the page."""
    numbers = {
        **names,
        "rows": f"{result.rows:,}, of which this run scored {result.rows_scored:,}",
        "errors of this run": f"{result.errors:,}",
        "time": time_text(result.seconds),
        "workers lost": f"{result.workers_lost}",
    }
    *workers, total = worker_rows(result)
    rows = [*map(row, workers), row(total, class_="best")]
    shown = table(COLUMNS, rows, class_="numbers", label="Workers")
    plan = {name: _text(fact) for name, fact in facts.items()}
    content = fragment(result.folder, listed(numbers), section("Workers", shown), section("Plan", listed(plan)))
    return document("Scores", content)


def worker_rows(result: ScoreResult) -> list[tuple[str, ...]]:
    """Rows of the table, one per worker and one total.

    Rates of a worker are per second in which it scored. The total is per second of the run.
    """
    rows = [_row(each.name, each, each.busy_s) for each in result.workers]
    return [*rows, _row("all", _sum(result.workers), result.seconds)]


def _text(fact: object) -> str:
    """Format a fact for people.

    `plan.json` has whole digests.
    """
    if isinstance(fact, Mapping):
        return ", ".join(f"{name} {_text(value)}" for name, value in fact.items())
    if isinstance(fact, list | tuple):
        return ", ".join(map(_text, fact)) or "none"
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    return _DIGEST.sub(lambda digest: f"{digest[0][:_SHOWN]}…", str(fact))


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
