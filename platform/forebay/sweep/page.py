"""A sweep as one HTML file that needs nothing beside it: no network, no other file."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from html import escape

from matplotlib.figure import Figure

from forebay.driver.result import below
from forebay.driver.wording import time_text
from forebay.errors import WriteFailed
from forebay.storage.atomic import write_atomically
from forebay.storage.credentials import redact, redacted
from forebay.sweep.plots import as_png, configs_figure, metric_figure, workers_figure
from forebay.sweep.record import Record, TrialRecord
from forebay.sweep.wording import blocks_text, config_text, states_text, value_text, word

FILE_NAME = "sweep.html"

log = logging.getLogger(__name__)

STYLE = """
.forebay-sweep { font: 14px/1.45 system-ui, sans-serif; color: #22313f; max-width: 1150px; margin: 0 auto; }
.forebay-sweep h1 { font-size: 1.5em; margin: 0.6em 0 0.2em; }
.forebay-sweep h2 { font-size: 1.1em; margin: 1.4em 0 0.3em; }
.forebay-sweep dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15em 1.2em; margin: 0.5em 0; }
.forebay-sweep dt { color: #6b7884; } .forebay-sweep dd { margin: 0; overflow-wrap: anywhere; }
.forebay-sweep img { max-width: 100%; height: auto; }
.forebay-sweep .wide { overflow-x: auto; }
.forebay-sweep table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.forebay-sweep th, .forebay-sweep td { text-align: left; padding: 0.25em 0.8em 0.25em 0; white-space: nowrap;
  border-bottom: 1px solid #e4e8ec; vertical-align: top; }
.forebay-sweep td.long { white-space: normal; min-width: 16em; overflow-wrap: anywhere; }
.forebay-sweep th { cursor: pointer; border-bottom: 2px solid #c3cad1; }
.forebay-sweep tr.best td { font-weight: 600; background: #fdf1f3; }
.forebay-sweep td.failed { color: #b3261e; }
"""

# A click on a head sorts by that column, another one the other way round; what has no value stays at the end.
SCRIPT = """
document.querySelectorAll(".forebay-sweep th").forEach((head, column) => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], up = head.dataset.up !== "yes";
  head.dataset.up = up ? "yes" : "no";
  const key = row => row.cells[column].dataset.key;
  const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
  [...body.rows].sort((a, b) => key(a) === "" || key(b) === "" ? (key(a) === "") - (key(b) === "")
    : (up ? 1 : -1) * order(key(a), key(b))).forEach(row => body.append(row));
}));
"""


def write_page(record: Record, path: str) -> str:
    """Write `sweep.html` into the sweep's folder `path`; the answer is where it is.

    Raises `WriteFailed` where storage refuses.
    """
    html = below(path, FILE_NAME)
    try:
        write_atomically(html, page(record).encode())
    except OSError as error:
        raise WriteFailed(
            f"the page of sweep {record.name!r} cannot be written to {html} ({redact(str(error))}). Make room or give "
            "access, and run the same sweep again: it trains nothing twice.",
            path=html,
        ) from redacted(error)
    return html


def page(record: Record) -> str:
    """The whole document."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(record.name)}</title></head>'
        f"<body>{body(record)}<script>{SCRIPT}</script></body></html>\n"
    )


def body(record: Record) -> str:
    """What stands in the document, and in the output of a notebook's cell."""
    pictures = (
        (f"{record.metric} over time", metric_figure),
        ("Workers over time", workers_figure),
        ("Configs", configs_figure),
    )
    shown = "".join(f"<h2>{escape(title)}</h2>{_picture(title, draw, record)}" for title, draw in pictures)
    return (
        f'<style>{STYLE}</style><div class="forebay-sweep"><h1>{escape(record.name)}</h1>{_header(record)}{shown}'
        f'<h2>Trials</h2><div class="wide">{_table(record)}</div></div>'
    )


def _picture(title: str, draw: Callable[[Record], Figure], record: Record) -> str:
    try:
        drawn = base64.b64encode(as_png(draw(record))).decode()
    except Exception as error:  # noqa: BLE001 - of whatever values there are; a sweep is not lost for a picture
        log.warning("The picture %r of sweep %r cannot be drawn: %s", title, record.name, error)
        return f"<p>This picture cannot be drawn: {escape(str(error))}</p>"
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{drawn}">'


def _header(record: Record) -> str:
    best = record.best
    goal = "the highest is the best" if record.mode == "max" else "the lowest is the best"
    facts = {"metric": f"{record.metric}, {goal}"}
    if best is not None:
        point = best.best(record.mode)
        facts["best value"] = f"{value_text(record.best_value)}, trial {best.id}, epoch {point.epoch if point else '-'}"
        facts["best config"] = config_text(best.config_at_best)
    else:
        facts["best value"] = "no trial has a value"
    facts["trials"] = states_text(record.trials.values())
    facts["time"] = time_text(record.elapsed_s)
    facts["deadline"] = "none" if record.deadline_s is None else time_text(record.deadline_s)
    if blocks := blocks_text(record):
        facts["cache"] = blocks
    if record.stopped:
        facts["stopped"] = record.stopped
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items()) + "</dl>"


def _table(record: Record) -> str:
    names = record.parameters
    best = record.best
    titles = ("trial", "state", "epochs", f"best {record.metric}", f"last {record.metric}", "seconds", *names, "error")
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    rows = [
        f"<tr{_class('best' if best is not None and trial.id == best.id else '')}>{_cells(record, trial, names)}</tr>"
        for trial in record.ranked
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cells(record: Record, trial: TrialRecord, names: Sequence[str]) -> str:
    best, last, config = trial.best(record.mode), trial.last, trial.config_at_best
    seconds = trial.seconds(record.elapsed_s)
    cells = [
        _cell(trial.id, trial.id),
        _cell(trial.state, trial.state, "failed" if trial.state == "failed" else ""),
        _cell(str(trial.epochs), trial.epochs),
        _cell(value_text(best.value if best else None), best.value if best else None),
        _cell(value_text(last.value if last else None), last.value if last else None),
        _cell(f"{seconds:.0f}", seconds),
        *(_cell("-" if name not in config else word(config[name]), config.get(name)) for name in names),
        _cell(trial.error or "", trial.error, "long"),
    ]
    return "".join(cells)


def _cell(text: str, key: object, kind: str = "") -> str:
    """`key` is what the column is sorted by."""
    return f'<td{_class(kind)} data-key="{escape("" if key is None else str(key))}">{escape(text)}</td>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
