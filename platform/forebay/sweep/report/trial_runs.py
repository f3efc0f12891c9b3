"""Report of a sweep: its page, with the runs of its best trials side by side."""

from __future__ import annotations

from forebay.errors import InvalidOption
from forebay.report.elements import element, joined, section
from forebay.storage.filesystem import below
from forebay.sweep.record.record import Record
from forebay.sweep.report.page import page
from forebay.training.run_report.comparison import comparison
from forebay.training.run_report.recorded_run import RecordedRun, load_run
from forebay.training.run_report.report_page import MAX_RUNS


def sweep_report(record: Record, runs: list[RecordedRun]) -> str:
    """HTML document of the sweep, with a comparison of `runs` if there are any."""
    if not runs:
        return page(record)
    told = f"The runs of the {len(runs)} best trials." if len(runs) > 1 else "The run of the best trial."
    return page(record, joined((section("Best trials", element("p", told)), comparison(runs))))


def best_runs(record: Record, path: str) -> list[RecordedRun]:
    """Runs of the best trials with a value, whose folders are there, at most as many as a report compares."""
    found = []
    for trial in record.ranked[:MAX_RUNS]:
        if trial.best(record.mode) is None:
            break
        try:
            found.append(load_run(below(below(path, "runs"), trial.run_at_best)))
        except InvalidOption:  # a folder that was removed since
            continue
    return found
