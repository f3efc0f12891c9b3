"""Report: an HTML page about one or several runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from forebay.errors import ForebayError, InvalidOption
from forebay.events import Event, Failed, Finished, Started
from forebay.report.page import document, fragment, write_page
from forebay.training.run_report.comparison import comparison
from forebay.training.run_report.recorded_run import RecordedRun, load_run
from forebay.training.run_report.sections import run_sections
from forebay.training.runs.control import Control
from forebay.training.runs.result import REPORT_FILE
from forebay.training.runs.run_folder import RunFolder

MAX_RUNS = 5
"""Runs of a comparison: as many as there are colors that differ enough."""


def write_report(run: RecordedRun) -> str:
    """Write a run's `report.html`.

    Into the run's folder. Returns its URI. Raises `WriteFailed` if storage refuses, and `InvalidOption` if the folder
    is not there: a run that was moved since must not leave another folder behind.
    """
    folder = RunFolder.at(run.path)
    if folder.location.is_local and not Path(folder.location.path).is_dir():
        raise InvalidOption(
            f"the folder {folder.uri} of run {run.name!r} is not there. If it was moved, give the folder where it "
            "is now: `forebay report FOLDER`.",
            path=folder.uri,
        )
    file = folder.location.child(REPORT_FILE)
    return write_page(file.uri, report_of([run]), f"the report of run {run.name!r}")


def report_of(runs: Sequence[RecordedRun], script: str = "") -> str:
    """Return an HTML document about `runs`.

    With a script or without. Raises `InvalidOption` for more than `MAX_RUNS`.
    """
    if not 1 <= len(runs) <= MAX_RUNS:
        raise InvalidOption(f"a report compares up to {MAX_RUNS} runs, and {len(runs)} were given. Give fewer runs.")
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    sections = run_sections(runs[0]) if len(runs) == 1 else [comparison(runs)]
    return document(title, fragment(title, *sections, under=_line(runs)), script)


def _line(runs: Sequence[RecordedRun]) -> str:
    if len(runs) > 1:
        return ", ".join(run.name for run in runs)
    run = runs[0]
    if run.newest is None:
        return run.state
    began = datetime.fromtimestamp(run.timeline.starts[0].at, UTC)
    starts = len(run.timeline.starts) + run.timeline.omitted
    return f"{run.state}, began {began:%Y-%m-%d %H:%M} UTC{f', {starts} starts' if starts > 1 else ''}"


log = logging.getLogger(__name__)


class ReportAtEnd:
    """Callback that writes a run's report when it ends.

    However it ends: `report.html` in its folder below `storage`. A report that cannot be written is logged.
    """

    def __init__(self, storage: str) -> None:
        self._storage, self._name = storage, ""

    def __call__(self, event: Event, control: Control) -> None:  # noqa: ARG002 - form of a callback
        match event:
            case Started():
                self._name = event.name
            case Finished():
                self._write(RunFolder.at(event.path))
            case Failed(will_retry=False) if self._name and not event.is_fenced:
                self._write(RunFolder.below(self._storage, self._name))

    def _write(self, folder: RunFolder) -> None:
        try:
            write_report(load_run(folder))
        except (OSError, ForebayError) as error:
            log.warning("The report of the run in %s could not be written: %s", folder.uri, error)
