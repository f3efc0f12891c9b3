"""Sections that show several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from forebay.report.elements import element, facts, joined, row, section, table
from forebay.training.run_report.incidents import incident_table, incidents_of
from forebay.training.run_report.pictures import run_bars, run_stage_bars
from forebay.training.run_report.recorded_run import RecordedRun
from forebay.training.run_report.sections import curves_section, throughput_section
from forebay.training.run_report.summary import FAULTS, differences, equal_facts, measured


def comparison(runs: Sequence[RecordedRun]) -> Markup:
    """Return the sections of a comparison.

    Numbers, what differed, curves, time by stage, throughput, cache, faults, events with their cost, and origin.
    """
    labels = _labelled(runs)
    return joined(
        (
            section("Side by side", _side_by_side(labels, measured(labels))),
            _differences(labels),
            curves_section(labels),
            _time_section(labels),
            throughput_section(labels),
            _cache_section(labels),
            _events_section(labels),
            _origin_section(labels),
        )
    )


def _labelled(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return runs with unique names.

    Runs of equal names get a number.
    """
    names = [run.name for run in runs]
    return [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({number})")
        for number, run in enumerate(runs, 1)
    ]


def _differences(runs: Sequence[RecordedRun]) -> Markup:
    parts: list[str] = []
    for group, found in differences(runs).items():
        parts += [element("h3", group), _side_by_side(runs, {name: _texts(values) for name, values in found.items()})]
    return section("What differed", *parts or ["Nothing that was recorded: config, data, code and packages are equal."])


def _time_section(runs: Sequence[RecordedRun]) -> Markup:
    if not any(run.epochs for run in runs):
        return joined(())
    stages = run_stage_bars(runs)
    pictures = [run_bars(runs), *([stages] if stages else [])]
    return section("Where the time went", element("div", *pictures, class_="pair"))


def _cache_section(runs: Sequence[RecordedRun]) -> Markup:
    counts = {title: ([run.counted(name) for run in runs], text) for name, (title, text) in FAULTS.items()}
    rows = {title: [text(value) for value in values] for title, (values, text) in counts.items() if any(values)}
    return section("Cache, reads and retries", _side_by_side(runs, rows)) if rows else joined(())


def _events_section(runs: Sequence[RecordedRun]) -> Markup:
    parts: list[str] = []
    for run in runs:
        incidents = incidents_of(run)
        if incidents:
            parts += [element("h3", run.name), incident_table(incidents)]
    return section("Events", *parts) if parts else joined(())


def _origin_section(runs: Sequence[RecordedRun]) -> Markup:
    folders = section("Runs", facts({run.name: run.path for run in runs}))
    groups = equal_facts(runs)
    parts = [element("div", element("h3", group), facts(_known(found))) for group, found in groups.items()]
    return joined((section("Equal in all runs", element("div", *parts, class_="pair")) if parts else "", folders))


def _side_by_side(runs: Sequence[RecordedRun], rows: Mapping[str, Sequence[str]]) -> Markup:
    head = ["", *(run.name for run in runs)]
    return table(head, [row([name, *texts]) for name, texts in rows.items()], label="Side by side")


def _texts(values: Sequence[Any]) -> list[str]:
    return ["-" if value is None else str(value) for value in values]


def _known(found: Mapping[str, Any]) -> dict[str, str]:
    return dict(zip(found, _texts(list(found.values())), strict=True))
