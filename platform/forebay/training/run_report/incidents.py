"""Incidents of a run, and what each cost.

Starts, changes of the world, failures, verdicts of monitors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from markupsafe import Markup

from forebay.events import INTERRUPTED
from forebay.report.curves import Mark
from forebay.report.elements import element, row, table
from forebay.runtime.formatting import seconds_text, time_text
from forebay.training.run_report.recorded_run import RecordedRun
from forebay.training.runs.timeline.timeline import TimedEvent

Kind = Literal["plain", "good", "warn", "bad"]
MOST = 60
"""Incidents of a table. Of more, the first and the last ones are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that happened at `at_s` of the running time.

    `what` is a sentence for people.

    `gap_s` is the time between the last reported step before it and the first one after it, and `repeated_steps` the
    number of steps that were trained again. Both are None if they are not known, or nothing stood still.
    """

    at_s: float
    kind: Kind
    what: str
    step: int | None = None
    gap_s: float | None = None
    repeated_steps: int | None = None


def incidents_of(run: RecordedRun) -> list[Incident]:
    """Incidents in the order of time."""
    found: list[Incident] = []
    for number, (begin_s, start) in enumerate(run.starts(), 1):
        host = start.origin.machine.get("host", "")
        attempt = "" if start.attempt in (None, number) else f", attempt {start.attempt}"
        found.append(Incident(at_s=begin_s, kind="plain", what=f"start {number} on {host}{attempt}"))
        for event in start.events:
            _add(found, event, begin_s + event.at_s)
        if not start.how and number < len(run.timeline.starts):
            what = "the process ended without a word: it was killed, or its machine was lost"
            found.append(Incident(at_s=begin_s + start.last_s, kind="bad", what=what))
    return found


def _add(found: list[Incident], event: TimedEvent, at_s: float) -> None:
    facts = event.facts
    if event.kind == "Started":
        gap_s, repeated = facts.get("gap_s"), facts.get("repeated_steps")
        # What a change costs is known at the first step after it.
        if found and found[-1].what.startswith(("resized", "workers were lost")):
            found[-1] = replace(found[-1], gap_s=gap_s, repeated_steps=repeated)
            return
        workers = f"{facts['world_size']} worker{'s' if facts['world_size'] != 1 else ''}"
        what = f"training begins on {workers}"
        found.append(Incident(at_s=at_s, kind="good", what=what, gap_s=gap_s, repeated_steps=repeated))
    elif (made := _incident(event, at_s)) is not None:
        found.append(made)


def _incident(event: TimedEvent, at_s: float) -> Incident | None:
    facts = event.facts
    told: tuple[Kind, str] | None = None
    match event.kind:
        case "Resized":
            told = "good", f"resized from {facts['old']} to {facts['new']} workers"
        case "Failed" if facts["error"] == INTERRUPTED:
            told = "warn", "interrupted"
        case "Failed":
            before = f"workers were lost (failure {facts['failures']})" if facts["will_retry"] else "the run failed"
            told = "bad", f"{before}: {facts['error']}"
        case "Preempted":
            others = f" and {len(facts['others'])} others" if facts.get("others") else ""
            told = "warn", f"node {facts['node']}{others} will be taken away, with {facts['workers']} workers"
        case "RolledBack":
            skipped = f", {facts['skipped_rows']} rows skipped" if facts["skipped_rows"] else ""
            told = "bad", f"back to step {facts['to_step']}{skipped}: {facts['reason']}"
        case "Warned":
            told = "warn", f"warning: {facts['reason']}"
        case "Finished":
            told = "plain", f"stopped: {facts['stopped']}" if facts.get("stopped") else "finished"
    if told is None:
        return None
    repeated = facts["from_step"] - facts["to_step"] if event.kind == "RolledBack" else None
    step = facts.get("step", facts.get("from_step"))
    return Incident(at_s=at_s, kind=told[0], what=told[1], step=step, repeated_steps=repeated)


def marks_of(incidents: Sequence[Incident]) -> list[Mark]:
    """Marks of a picture, numbered as in the table."""
    return [
        Mark(x=each.at_s, label=str(number), title=f"{number}: {each.what}", kind=each.kind)
        for number, each in enumerate(incidents, 1)
    ]


def incident_table(incidents: Sequence[Incident]) -> Markup:
    """Return a table: time, incident, cost."""
    numbered = list(enumerate(incidents, 1))
    half = MOST // 2
    if len(numbered) > MOST:
        left_out = row(["…", "", element("td", f"{len(numbered) - MOST} more", class_="text"), "", "", ""])
        rows = [*map(_row, numbered[:half]), left_out, *map(_row, numbered[-half:])]
    else:
        rows = [*map(_row, numbered)]
    return table(["", "time", "what", "step", "no steps for", "repeated"], rows, label="Events")


def _row(numbered: tuple[int, Incident]) -> Markup:
    number, each = numbered
    colors = {"plain": None, "good": None, "warn": "paused", "bad": "failed"}
    return row(
        [
            str(number),
            time_text(each.at_s),
            element("td", each.what, class_=f"text {colors[each.kind] or ''}".strip()),
            "" if each.step is None else str(each.step),
            "" if each.gap_s is None else f"{seconds_text(each.gap_s)} s",
            "" if not each.repeated_steps else f"{each.repeated_steps} step{'s' if each.repeated_steps > 1 else ''}",
        ]
    )
