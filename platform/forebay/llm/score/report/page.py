"""Page of a scoring run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forebay.llm.score.report.table import COLUMNS, worker_rows
from forebay.llm.score.result import ScoreResult
from forebay.report.elements import facts as listed
from forebay.report.elements import row, section, table
from forebay.report.page import document, fragment
from forebay.report.page import write_page as write
from forebay.runtime.formatting import time_text
from forebay.storage.filesystem import below

FILE_NAME = "scores.html"
_DIGEST, _SHOWN = re.compile(r"[0-9a-f]{32,}"), 12


def write_page(result: ScoreResult, names: Mapping[str, str], facts: Mapping[str, object]) -> str:
    """Write the page into the folder of the answers. Returns its URI. Raises `WriteFailed`.

    `names` are those of model and data, `facts` those of the plan.
    """
    return write(below(result.folder, FILE_NAME), page_of(result, names, facts), "The page of the scoring run")


def page_of(result: ScoreResult, names: Mapping[str, str], facts: Mapping[str, object]) -> str:
    """HTML of the page."""
    numbers = {
        **names,
        "rows": f"{result.rows:,}, of which this run scored {result.rows_scored:,}",
        "errors": f"{result.errors:,}",
        "time": time_text(result.seconds),
        "workers lost": f"{result.workers_lost}",
    }
    *workers, total = worker_rows(result)
    rows = [*map(row, workers), row(total, class_="best")]
    shown = table(COLUMNS, rows, class_="numbers", label="Workers")
    plan = {name: _text(fact) for name, fact in facts.items()}
    content = fragment(result.folder, listed(numbers), section("Workers", shown), section("Plan", listed(plan)))
    return document("Scores", content)


def _text(fact: object) -> str:
    """Fact as people read it. `plan.json` has digests as a whole."""
    if isinstance(fact, Mapping):
        return ", ".join(f"{name} {_text(value)}" for name, value in fact.items())
    if isinstance(fact, list | tuple):
        return ", ".join(map(_text, fact)) or "none"
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    return _DIGEST.sub(lambda digest: f"{digest[0][:_SHOWN]}…", str(fact))
