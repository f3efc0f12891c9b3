"""Tables of a run: metrics, speed, cache and stages by epoch."""

from __future__ import annotations

from rich.console import Console

from forebay.events import EpochEnded
from forebay.formatting import bytes_text, count_text, metric_text, seconds_text, share_text, time_text
from forebay.report.fitted_table import FittedTable
from forebay.report.run_plots import write_plots
from forebay.report.stages import CAPTION, stage_s, stages_of
from forebay.runs.result import Result


def show_report(result: Result, console: Console | None = None) -> None:
    """Print the tables of epochs and stages, write the two plots into the run's folder, and say where they are."""
    console = console or Console(highlight=False)
    console.print(epoch_table(result))
    if stages_of(result.epochs):
        console.print(stage_table(result))
    for path in write_plots(result):
        console.print(path, markup=False, soft_wrap=True)


def epoch_table(result: Result) -> FittedTable:
    """One row per epoch: metrics, speed, and cache use.

    `wait` is the share of the time that training waited for data. `hits` counts blocks from the cache. `cached` and
    `stored` are the bytes read from it and written to it. `opens` counts Parquet files that were opened. `uncached`
    stands only where some blocks did not fit: the bytes of these blocks.
    """
    metrics = metric_names(result)
    bypassed = any(epoch.tally.get("bypasses") for epoch in result.epochs)
    columns = ["epoch", *metrics, "rows/s", "time", "wait", "hits", "cached", "stored", "opens"]
    rows = []
    for epoch in result.epochs:
        given = [metric_text(epoch.metrics[name]) if name in epoch.metrics else "-" for name in metrics]
        rows.append([str(epoch.epoch + 1), *given, *_cost(epoch), *([_uncached(epoch)] if bypassed else [])])
    title = f"{result.name}, stopped: {result.stopped}" if result.stopped else result.name
    return FittedTable([*columns, *(["uncached"] if bypassed else [])], rows, title=title)


def stage_table(result: Result) -> FittedTable:
    """One row per epoch: seconds by stage, summed over threads and ranks."""
    stages = stages_of(result.epochs)
    rows = [
        [str(epoch.epoch + 1), *(_short_seconds(stage_s(epoch, stage)) for stage in stages)] for epoch in result.epochs
    ]
    return FittedTable(["epoch", *stages], rows, title="seconds by stage, summed over workers", caption=CAPTION)


def metric_names(result: Result) -> list[str]:
    """All metrics of all epochs, the loss first, the others in the order they came up."""
    names = {name: None for epoch in result.epochs for name in epoch.metrics}
    return sorted(names, key=lambda name: name != "loss")


def _cost(epoch: EpochEnded) -> list[str]:
    tally = epoch.tally
    hits, stores, bypasses = (tally.get(name, 0) for name in ("hits", "stores", "bypasses"))
    blocks = hits + stores + bypasses
    return [
        count_text(epoch.rows_per_s),
        time_text(epoch.seconds),
        share_text(epoch.wait_share),
        f"{hits:.0f}/{blocks:.0f}",
        bytes_text(tally.get("hit_bytes", 0)),
        bytes_text(tally.get("stored_bytes", 0)),
        f"{tally.get('parquet_opens', 0):.0f}",
    ]


def _uncached(epoch: EpochEnded) -> str:
    return bytes_text(epoch.tally.get("bypass_bytes", 0))


def _short_seconds(seconds: float) -> str:
    """At most five characters, so that the columns of all ten stages fit 80."""
    return seconds_text(seconds) if seconds < 99_999.5 else count_text(seconds)
