"""Page of a scoring run: one HTML file that needs no network and no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from forebay.formatting import time_text
from forebay.score.report.table import COLUMNS, worker_rows
from forebay.score.result import ScoreResult
from forebay.storage.atomic import write_atomically, write_failed
from forebay.storage.filesystem import below

FILE_NAME = "scores.html"

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #22313f; background: #fff; color-scheme: light;
  max-width: 1000px; margin: 0 auto; padding: 0.5em 1em 2em; }
h1 { font-size: 1.4em; overflow-wrap: anywhere; } h2 { font-size: 1.1em; margin: 1.4em 0 0.3em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15em 1.2em; }
dt { color: #5f6b76; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 0.25em 0.9em 0.25em 0; border-bottom: 1px solid #e4e8ec; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr:last-child td { font-weight: 600; }
"""


def write_page(result: ScoreResult, facts: Mapping[str, object]) -> str:
    """Write the page into the folder of the answers. Returns its URI. Raises `WriteFailed`.

    `facts` are those of the plan.
    """
    uri = below(result.folder, FILE_NAME)
    try:
        write_atomically(uri, page_of(result, facts).encode())
    except OSError as error:
        raise write_failed("The page of the scoring run", uri, error) from error
    return uri


def page_of(result: ScoreResult, facts: Mapping[str, object]) -> str:
    """HTML of the page."""
    numbers = {
        "rows": f"{result.rows:,}, of which this run scored {result.rows_scored:,}",
        "errors": f"{result.errors:,}",
        "time": time_text(result.seconds),
        "workers lost": f"{result.workers_lost}",
    }
    rows = "".join(_table_row("td", row) for row in worker_rows(result))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Scores</title>'
        f"<style>{_STYLE}</style></head>"
        f"<body><h1>{escape(result.folder)}</h1>{_list(numbers)}<h2>Workers</h2>"
        f'<div class="wide"><table><thead>{_table_row("th", COLUMNS)}</thead><tbody>{rows}</tbody></table></div>'
        f"<h2>Plan</h2>{_list(facts)}</body></html>\n"
    )


def _table_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _list(facts: Mapping[str, object]) -> str:
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(fact))}</dd>" for name, fact in facts.items())
    return f"<dl>{pairs}</dl>"
