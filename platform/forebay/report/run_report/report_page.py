"""Report: one HTML page about one run, or about several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from forebay.errors import InvalidOption
from forebay.report.html.elements import element, joined, row, section, table
from forebay.report.html.page import document, fragment, write_page
from forebay.report.run_report.pictures import run_bars
from forebay.report.run_report.recorded_run import RecordedRun
from forebay.report.run_report.sections import curves_section, run_sections, throughput_section
from forebay.report.run_report.summary import differences, measured
from forebay.runs.result import REPORT_FILE
from forebay.storage.filesystem import below

MAX_RUNS = 5
"""Runs of a comparison: as many as there are colours that differ enough."""


def write_report(run: RecordedRun) -> str:
    """Write `report.html` into the run's folder, and return its URI. Raises `WriteFailed` if storage refuses."""
    return write_page(below(run.path, REPORT_FILE), report_of([run]), f"the report of run {run.name!r}")


def report_of(runs: Sequence[RecordedRun], script: str = "") -> str:
    """HTML document about `runs`, with a script or without. Raises `InvalidOption` for more than `MAX_RUNS`."""
    if not 1 <= len(runs) <= MAX_RUNS:
        raise InvalidOption(f"a report compares up to {MAX_RUNS} runs, and {len(runs)} were given. Give fewer runs.")
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    sections = run_sections(runs[0]) if len(runs) == 1 else [comparison(runs)]
    return document(title, fragment(title, *sections, under=_line(runs)), script)


def comparison(runs: Sequence[RecordedRun]) -> Markup:
    """Sections that show runs side by side, and what differed."""
    labels = _labelled(runs)
    bars = section("Where the time went", element("div", run_bars(labels), class_="pair"))
    return joined(
        (
            section("Side by side", _side_by_side(labels, measured(labels))),
            _differences(labels),
            curves_section(labels),
            bars if any(run.epochs for run in runs) else "",
            throughput_section(labels),
            section("Runs", *(element("p", f"{run.name}: {run.path}", class_="quiet") for run in labels)),
        )
    )


def _labelled(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Runs with a name each: runs of equal names get the number of their place."""
    names = [run.name for run in runs]
    return [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({number})")
        for number, run in enumerate(runs, 1)
    ]


def _differences(runs: Sequence[RecordedRun]) -> Markup:
    found = differences(runs)
    parts: list[str] = []
    for group, facts in found.items():
        parts += [element("h3", group), _side_by_side(runs, {name: _texts(values) for name, values in facts.items()})]
    return section("What differed", *parts or ["Nothing that was recorded: config, data, code and packages are equal."])


def _side_by_side(runs: Sequence[RecordedRun], rows: Mapping[str, Sequence[str]]) -> Markup:
    head = ["", *(run.name for run in runs)]
    return table(head, [row([name, *texts]) for name, texts in rows.items()], label="Side by side")


def _texts(values: Sequence[Any]) -> list[str]:
    return ["-" if value is None else str(value) for value in values]


def _line(runs: Sequence[RecordedRun]) -> str:
    if len(runs) > 1:
        return ", ".join(run.name for run in runs)
    run = runs[0]
    if run.newest is None:
        return run.state
    began = datetime.fromtimestamp(run.timeline.starts[0].at, UTC)
    starts = len(run.timeline.starts) + run.timeline.omitted
    return f"{run.state}, began {began:%Y-%m-%d %H:%M} UTC{f', {starts} starts' if starts > 1 else ''}"
