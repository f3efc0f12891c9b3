"""Tables of a run: metrics, speed, cache and stages by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console

from forebay.events import EpochEnded
from forebay.formatting import bytes_text, count_text, metric_text_of, seconds_text, share_text, time_text
from forebay.report.columns import Column, column
from forebay.report.fitted_table import FittedTable
from forebay.report.run_plots import write_plots
from forebay.report.stages import CAPTION, stage_s, stages_of
from forebay.runs.result import Result

EpochColumn = Column[EpochEnded]


def show_report(result: Result, console: Console | None = None) -> None:
    """Print the tables of epochs and stages, write the plots into the run's folder, and print their paths.

    `console` is the output, standard output by default. Raises `OSError` if the folder cannot be written.
    """
    console = console or Console(highlight=False)
    console.print(epoch_table(result))
    if stages_of(result.epochs):
        console.print(stage_table(result))
    for path in write_plots(result):
        console.print(path, markup=False, soft_wrap=True)


def epoch_table(result: Result) -> FittedTable:
    """Table with one row per epoch: metrics, speed, and cache use.

    `wait` is the share of the time that training waited for data. `hits` counts blocks from the cache. `cached` and
    `stored` are the bytes read from it and written to it. `opens` counts opened Parquet files. `uncached` is the bytes
    of blocks that did not fit. It appears only if there were any.
    """
    bypassed = any(epoch.tally.get("bypasses") for epoch in result.epochs)
    columns = [EPOCH, *map(_metric, metric_names(result)), *COSTS, *([UNCACHED] if bypassed else [])]
    title = f"{result.name}, stopped: {result.stopped}" if result.stopped else result.name
    return _table(columns, result.epochs, title)


def stage_table(result: Result) -> FittedTable:
    """Table with one row per epoch: seconds by stage, summed over threads and ranks."""
    columns = [EPOCH, *map(_stage, stages_of(result.epochs))]
    return _table(columns, result.epochs, "seconds by stage, summed over workers", CAPTION)


def metric_names(result: Result) -> list[str]:
    """Names of all metrics of all epochs: the loss first, the others in order of appearance."""
    names = {name: None for epoch in result.epochs for name in epoch.metrics}
    return sorted(names, key=lambda name: name != "loss")


def _table(
    columns: Sequence[EpochColumn], epochs: Sequence[EpochEnded], title: str, caption: str | None = None
) -> FittedTable:
    rows = [[each.text(epoch) for each in columns] for epoch in epochs]
    return FittedTable([each.title for each in columns], rows, title=title, caption=caption)


def _hits(epoch: EpochEnded) -> str:
    hits, stores, bypasses = (epoch.tally.get(name, 0) for name in ("hits", "stores", "bypasses"))
    return f"{hits:.0f}/{hits + stores + bypasses:.0f}"


EPOCH: EpochColumn = column("epoch", lambda epoch: epoch.epoch + 1)
COSTS: tuple[EpochColumn, ...] = (
    column("rows/s", lambda epoch: epoch.rows_per_s, count_text),
    column("time", lambda epoch: epoch.seconds, time_text),
    column("wait", lambda epoch: epoch.wait_share, share_text),
    column("hits", _hits),
    column("cached", lambda epoch: epoch.tally.get("hit_bytes", 0), bytes_text),
    column("stored", lambda epoch: epoch.tally.get("stored_bytes", 0), bytes_text),
    column("opens", lambda epoch: epoch.tally.get("parquet_opens", 0), "{:.0f}".format),
)
UNCACHED: EpochColumn = column("uncached", lambda epoch: epoch.tally.get("bypass_bytes", 0), bytes_text)


def _metric(name: str) -> EpochColumn:
    return column(name, lambda epoch: epoch.metrics.get(name), partial(metric_text_of, name))


def _stage(name: str) -> EpochColumn:
    return column(name, lambda epoch: stage_s(epoch, name), _short_seconds)


def _short_seconds(seconds: float) -> str:
    """Text of at most five characters, so that the columns of all ten stages fit into 80."""
    return seconds_text(seconds) if seconds < 99_999.5 else count_text(seconds)
