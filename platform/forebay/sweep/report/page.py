"""Page of a sweep: one HTML file that needs no network and no other file."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from html import escape

from matplotlib.figure import Figure

from forebay.foreign_code import error_of
from forebay.formatting import time_text
from forebay.storage.atomic import ADVICE, write_atomically, write_failed
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import below
from forebay.sweep.record.record import Record
from forebay.sweep.report.colours import Colours
from forebay.sweep.report.parallel import configs_figure
from forebay.sweep.report.plots import as_png, metric_figure, workers_figure
from forebay.sweep.report.text import blocks_text, config_text, states_text, value_text
from forebay.sweep.report.trial_columns import STATE, TRIAL, TrialColumn, TrialRow, page_columns

FILE_NAME = "sweep.html"

log = logging.getLogger(__name__)

# Always light: the plots are, and a notebook may be dark.
STYLE = """
.forebay-sweep { font: 14px/1.45 system-ui, sans-serif; color: #22313f; background: #fff; color-scheme: light;
  max-width: 1150px; margin: 0 auto; padding: 0.1em 1em 1em; }
.forebay-sweep h1 { font-size: 1.5em; margin: 0.6em 0 0.2em; overflow-wrap: anywhere; }
.forebay-sweep h2 { font-size: 1.1em; margin: 1.4em 0 0.3em; }
.forebay-sweep dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15em 1.2em; margin: 0.5em 0; }
.forebay-sweep dt { color: #5f6b76; } .forebay-sweep dd { margin: 0; overflow-wrap: anywhere; }
.forebay-sweep dd.best { color: #b93546; font-weight: 600; }
.forebay-sweep img { display: block; width: 100%; height: auto; }
.forebay-sweep .wide { overflow-x: auto; }
.forebay-sweep table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.forebay-sweep th, .forebay-sweep td { text-align: left; padding: 0.25em 0.8em 0.25em 0; white-space: nowrap;
  border-bottom: 1px solid #e4e8ec; vertical-align: top; background: #fff; }
.forebay-sweep th:first-child, .forebay-sweep td:first-child { position: sticky; left: 0; }
.forebay-sweep td i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.5em; border-radius: 2px; }
.forebay-sweep dl.errors { grid-template-columns: fit-content(14em) 1fr; }
.forebay-sweep dl.errors dt { overflow-wrap: anywhere; }
.forebay-sweep th { border-bottom: 2px solid #c3cad1; }
.forebay-sweep th[data-up="yes"]::after { content: " \\25b2"; }
.forebay-sweep th[data-up="no"]::after { content: " \\25bc"; }
.forebay-sweep tr.best td { font-weight: 600; background: #fdf1f3; }
.forebay-sweep td.failed { color: #b3261e; } .forebay-sweep td.running { color: #1b7a3d; }
.forebay-sweep td.paused { color: #8a5a00; } .forebay-sweep td.pending { color: #5f6b76; }
"""

# A click on a header sorts by that column, a second one reverses; missing values stay at the end.
SCRIPT = """
const heads = document.querySelectorAll(".forebay-sweep th");
heads.forEach((head, column) => { head.style.cursor = "pointer"; head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], up = head.dataset.up !== "yes";
  heads.forEach(other => delete other.dataset.up);
  head.dataset.up = up ? "yes" : "no";
  const key = row => row.cells[column].dataset.key;
  const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
  [...body.rows].sort((a, b) => key(a) === "" || key(b) === "" ? (key(a) === "") - (key(b) === "")
    : (up ? 1 : -1) * order(key(a), key(b))).forEach(row => body.append(row));
}); });
"""
POINTS_PER_INCH = 80
"""Smallest scale of a plot: on a narrow screen it scrolls."""
RED = ("best value", "best config")
"""Facts in the colour of the best trial."""


def write_page(record: Record, path: str) -> str:
    """Write `sweep.html` into the sweep's folder `path`. Returns its path.

    Raises `WriteFailed` if storage refuses.
    """
    html = below(path, FILE_NAME)
    try:
        write_atomically(html, page(record).encode())
    except OSError as error:
        advice = f"{ADVICE} Run the same sweep again: it trains nothing twice."
        raise write_failed(f"the page of sweep {record.name!r}", html, error, advice) from redacted(error)
    return html


def page(record: Record) -> str:
    """HTML document."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(record.name)}</title></head>"
        f"<body>{body(record)}<script>{SCRIPT}</script></body></html>\n"
    )


def body(record: Record) -> str:
    """Content of the document, also shown by a notebook."""
    pictures = (
        (f"{record.metric} over time", metric_figure),
        ("Workers over time", workers_figure),
        ("Configs", configs_figure),
    )
    shown = "".join(f"<h2>{escape(title)}</h2>{_picture(title, draw, record)}" for title, draw in pictures)
    return (
        f'<style>{STYLE}</style><div class="forebay-sweep"><h1>{escape(record.name)}</h1>{_header(record)}{shown}'
        f'<h2>Trials</h2><div class="wide">{_table(record)}</div>{_errors(record)}</div>'
    )


def _picture(title: str, draw: Callable[[Record], Figure], record: Record) -> str:
    drawn: list[str] = []
    # Values of any kind may break matplotlib. A failed plot must not end the sweep.
    error = error_of(lambda: drawn.append(_image(title, draw(record))))
    if error is not None:
        log.warning("The plot %r of sweep %r cannot be drawn: %s", title, record.name, error)
        return f"<p>This plot cannot be drawn: {escape(str(error))}</p>"
    return f'<div class="wide">{drawn[0]}</div>'


def _image(title: str, figure: Figure) -> str:
    png = base64.b64encode(as_png(figure)).decode()
    least = round(figure.get_figwidth() * POINTS_PER_INCH)
    return f'<img alt="{escape(title)}" style="min-width: {least}px" src="data:image/png;base64,{png}">'


def _header(record: Record) -> str:
    best = record.best
    goal = "the highest is the best" if record.mode == "max" else "the lowest is the best"
    facts = {"metric": f"{record.metric}, {goal}"}
    if best is not None:
        point = best.best(record.mode)
        facts["best value"] = f"{value_text(record.best_value)}, trial {best.id}, epoch {point.epoch if point else '-'}"
        facts["best config"] = config_text(best.config_at_best)
        facts["best run"] = f"runs/{best.run_at_best}"
    else:
        facts["best value"] = "no trial has a value"
    facts["trials"] = states_text(record.trials.values())
    facts["time"] = time_text(record.elapsed_s)
    facts["deadline"] = "none" if record.deadline_s is None else time_text(record.deadline_s)
    if blocks := blocks_text(record):
        facts["cache"] = blocks
    if record.stopped:
        facts["stopped"] = record.stopped
    lines = (
        f"<dt>{escape(name)}</dt><dd{_class('best' if name in RED else '')}>{escape(fact)}</dd>"
        for name, fact in facts.items()
    )
    return f"<dl>{''.join(lines)}</dl>"


def _table(record: Record) -> str:
    best, colours = record.best, Colours(record)
    columns = page_columns(record.metric, record.parameters)
    head = "".join(f"<th>{escape(column.title)}</th>" for column in columns)
    rows = []
    for trial in record.ranked:
        row, colour = TrialRow.of_record(record, trial), colours.of(trial)
        cells = "".join(_cell(column, row, colour) for column in columns)
        rows.append(f"<tr{_class('best' if trial == best else '')}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(column: TrialColumn, row: TrialRow, colour: str) -> str:
    """Cell of a row, with its sort key. `colour` is that of the trial in the plots. The error is a tooltip."""
    key, text = column.value(row), escape(column.text(row))
    data = f'data-key="{escape("" if key is None else str(key))}"'
    if column is TRIAL:
        return f'<td {data}><i style="background: {colour}"></i>{text}</td>'
    if column is STATE:
        hint = f' title="{escape(row.error)}"' if row.error else ""
        return f"<td{_class(row.state)}{hint} {data}>{text}</td>"
    return f"<td {data}>{text}</td>"


def _errors(record: Record) -> str:
    """Errors as a separate list: long messages would make the table too wide."""
    found: dict[str, list[str]] = {}
    for trial in record.trials.values():
        if trial.error:
            found.setdefault(trial.error, []).append(trial.id)
    lines = (f"<dt>{escape(', '.join(ids))}</dt><dd>{escape(error)}</dd>" for error, ids in found.items())
    return f'<h2>Errors</h2><dl class="errors">{"".join(lines)}</dl>' if found else ""


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
