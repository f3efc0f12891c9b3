"""Page of a scoring run."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.formatting import time_text
from forebay.report.html.elements import facts as listed
from forebay.report.html.elements import row, section, table
from forebay.report.html.page import document, fragment
from forebay.report.html.page import write_page as write
from forebay.score.report.table import COLUMNS, worker_rows
from forebay.score.result import ScoreResult

FILE_NAME = "scores.html"


def write_page(result: ScoreResult, facts: Mapping[str, object]) -> str:
    """Write the page into the folder of the answers. Returns its URI. Raises `WriteFailed`.

    `facts` are those of the plan.
    """
    return write(result.folder, FILE_NAME, page_of(result, facts), "The page of the scoring run")


def page_of(result: ScoreResult, facts: Mapping[str, object]) -> str:
    """HTML of the page."""
    numbers = {
        "rows": f"{result.rows:,}, of which this run scored {result.rows_scored:,}",
        "errors": f"{result.errors:,}",
        "time": time_text(result.seconds),
        "workers lost": f"{result.workers_lost}",
    }
    *workers, total = worker_rows(result)
    rows = [*map(row, workers), row(total, class_="best")]
    shown = table(COLUMNS, rows, class_="numbers", label="Workers")
    content = fragment(result.folder, listed(numbers), section("Workers", shown), section("Plan", listed(facts)))
    return document("Scores", content)
