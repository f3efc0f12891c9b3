"""Tables of a run by epoch.

Metrics, speed, cache and stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from forebay.events import EpochEnded
from forebay.report.console import SafeConsole
from forebay.report.fitted_table import FittedTable
from forebay.training.run_report.epoch_columns import EpochColumn, epoch_columns, stage_columns
from forebay.training.run_report.recorded_run import recorded
from forebay.training.run_report.report_page import write_report
from forebay.training.run_report.stages import CAPTION, stages_of
from forebay.training.runs.result import Result


def show_report(result: Result, console: Console | None = None) -> None:
    """Print the tables of a run, and write its report.

    Tables of epochs and stages, then the report's path.

    `console` is the output, standard output by default. Raises `WriteFailed` if the folder cannot be written.
    """
    console = console or SafeConsole(highlight=False)
    console.print(epoch_table(result))
    if stages_of(result.epochs):
        console.print(stage_table(result))
    console.print(write_report(recorded(result)), markup=False, soft_wrap=True)


def epoch_table(result: Result) -> FittedTable:
    """Return a table of epochs.

    One row per epoch: metrics, speed, and cache use.

    `wait` is the share of the time that training waited for data. `hits` counts blocks from the cache. `cached` and
    `stored` are the bytes read from it and written to it. `opens` counts opened Parquet files. `uncached` is the bytes
    of blocks that did not fit. It appears only if there were any.
    """
    title = f"{result.name}, stopped: {result.stopped}" if result.stopped else result.name
    return _table(epoch_columns(result), result.epochs, title)


def stage_table(result: Result) -> FittedTable:
    """Return a table of stages.

    One row per epoch: seconds by stage, summed over threads and ranks.
    """
    return _table(stage_columns(result), result.epochs, "seconds by stage, summed over workers", CAPTION)


def _table(
    columns: Sequence[EpochColumn], epochs: Sequence[EpochEnded], title: str, caption: str | None = None
) -> FittedTable:
    rows = [[each.text(epoch) for each in columns] for epoch in epochs]
    return FittedTable([each.title for each in columns], rows, title=title, caption=caption)
