"""Page of a sweep, and its report with runs.

An HTML file that needs no network and no other file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from markupsafe import Markup

from forebay.errors import InvalidOption
from forebay.report.elements import element, facts, joined, row, section, table
from forebay.report.page import document, fragment
from forebay.report.page import write_page as write
from forebay.report.picture import Picture
from forebay.runtime.foreign_code import error_of
from forebay.runtime.formatting import time_text
from forebay.storage.atomic import ADVICE
from forebay.storage.filesystem import below
from forebay.sweep.layout import RUNS
from forebay.sweep.record.record import Record
from forebay.sweep.report.colors import Colors
from forebay.sweep.report.parallel import configs_picture
from forebay.sweep.report.plots import metric_picture, workers_picture
from forebay.sweep.report.text import blocks_text, config_text, states_text, value_text
from forebay.sweep.report.trial_columns import STATE, TRIAL, TrialColumn, TrialRow, page_columns
from forebay.training.run_report.comparison import comparison
from forebay.training.run_report.recorded_run import RecordedRun, load_run
from forebay.training.run_report.report_page import MAX_RUNS
from forebay.training.runs.run_folder import RunFolder

FILE_NAME = "sweep.html"

log = logging.getLogger(__name__)

# A click on a header sorts by that column, a second one reverses; missing values stay at the end.
SCRIPT = """
const heads = document.querySelectorAll(".forebay table.trials th");
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
RED = ("best value", "best config")
"""Facts in the color of the best trial."""


def write_page(record: Record, path: str) -> str:
    """Write `sweep.html` into the sweep's folder `path`.

    Returns its path.

    Raises `WriteFailed` if storage refuses.
    """
    advice = f"{ADVICE} Run the same sweep again: it trains nothing twice."
    return write(below(path, FILE_NAME), page(record), f"the page of sweep {record.name!r}", advice)


def page(record: Record, more: str = "") -> str:
    """HTML document. `more` follows the table of trials."""
    return document(record.name, body(record, more), SCRIPT)


def body(record: Record, more: str = "") -> Markup:
    """Content of the document, also shown by a notebook."""
    pictures = (
        (f"{record.metric} over time", metric_picture),
        ("Workers over time", workers_picture),
        ("Configs", configs_picture),
    )
    *over_time, configs = (section(title, _picture(title, draw, record)) for title, draw in pictures)
    trials = section("Trials", _table(record))
    pair = element("div", *over_time, class_="pair")
    return fragment(record.name, _header(record), pair, configs, trials, _errors(record), more)


def _picture(title: str, draw: Callable[[Record], Picture], record: Record) -> Markup:
    drawn: list[Markup] = []
    # Values of any kind may break a plot. It must not end the sweep.
    error = error_of(lambda: drawn.append(draw(record).in_page()))
    if error is not None:
        log.warning("The plot %r of sweep %r cannot be drawn: %s", title, record.name, error)
        return element("p", f"This plot cannot be drawn: {error}")
    return drawn[0]


def _header(record: Record) -> Markup:
    best = record.best
    goal = "the highest is the best" if record.mode == "max" else "the lowest is the best"
    known = {"metric": f"{record.metric}, {goal}"}
    if best is not None:
        point = best.best(record.mode)
        known["best value"] = f"{value_text(record.best_value)}, trial {best.id}, epoch {point.epoch if point else '-'}"
        known["best config"] = config_text(best.config_at_best)
        known["best run"] = f"runs/{best.run_at_best}"
    else:
        known["best value"] = "no trial has a value"
    known["trials"] = states_text(record.trials.values())
    known["time"] = time_text(record.elapsed_s)
    known["deadline"] = "none" if record.deadline_s is None else time_text(record.deadline_s)
    if blocks := blocks_text(record):
        known["cache"] = blocks
    if record.stopped:
        known["stopped"] = record.stopped
    marked = {name: element("span", text, class_="best") if name in RED else text for name, text in known.items()}
    return facts(marked)


def _table(record: Record) -> Markup:
    best, colors = record.best, Colors(record)
    columns = page_columns(record.metric, record.parameters)
    rows = []
    for trial in record.ranked:
        shown, color = TrialRow.of_record(record, trial), colors.of(trial)
        cells = [_cell(column, shown, color) for column in columns]
        rows.append(row(cells, class_="best" if trial == best else None))
    return table([column.title for column in columns], rows, class_="trials", label="Trials")


def _cell(column: TrialColumn, shown: TrialRow, color: str) -> Markup:
    """Return a cell of a row, with its sort key.

    `color` is the trial's color in the plots. The error is a tooltip.
    """
    key, text = column.value(shown), column.text(shown)
    sort = "" if key is None else str(key)
    if column is TRIAL:
        return element("td", element("i", style=f"background: {color}"), text, data_key=sort)
    if column is STATE:
        return element("td", text, class_=shown.state, title=shown.error or None, data_key=sort)
    return element("td", text, data_key=sort)


def _errors(record: Record) -> Markup:
    """Return the errors as a separate list.

    Long messages would make the table too wide.
    """
    found: dict[str, list[str]] = {}
    for trial in record.trials.values():
        if trial.error:
            found.setdefault(trial.error, []).append(trial.id)
    named = {", ".join(ids): error for error, ids in found.items()}
    return section("Errors", facts(named)) if found else joined(())


def sweep_report(record: Record, runs: list[RecordedRun]) -> str:
    """Return a sweep's page, with a comparison of `runs`.

    Without runs, there is none.
    """
    if not runs:
        return page(record)
    told = f"The runs of the {len(runs)} best trials." if len(runs) > 1 else "The run of the best trial."
    return page(record, joined((section("Best trials", element("p", told)), comparison(runs))))


def best_runs(record: Record, path: str) -> list[RecordedRun]:
    """Load the runs of the best trials.

    Those with a value, whose folders are there, at most as many as a report compares.
    """
    found = []
    for trial in record.ranked[:MAX_RUNS]:
        if trial.best(record.mode) is None:
            break
        try:
            found.append(load_run(RunFolder.below(below(path, RUNS), trial.run_at_best)))
        except InvalidOption:  # a folder that was removed since
            continue
    return found
