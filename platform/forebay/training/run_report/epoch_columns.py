"""Columns of tables with one row per epoch.

In a terminal and on a page.
"""

from __future__ import annotations

from functools import partial

from forebay.events import EpochEnded
from forebay.report.columns import Column, column
from forebay.runtime.formatting import bytes_text, count_text, metric_text_of, seconds_text, share_text, time_text
from forebay.training.run_report.stages import stage_s, stages_of
from forebay.training.runs.result import Result

EpochColumn = Column[EpochEnded]


def epoch_columns(result: Result) -> list[EpochColumn]:
    """Columns of the table of epochs."""
    bypassed = any(epoch.counters.get("bypasses") for epoch in result.epochs)
    return [EPOCH, *map(_metric, metric_names(result)), *COSTS, *([UNCACHED] if bypassed else [])]


def stage_columns(result: Result) -> list[EpochColumn]:
    """Columns of the table of stages."""
    return [EPOCH, *map(_stage, stages_of(result.epochs))]


def metric_names(result: Result) -> list[str]:
    """Return the names of all metrics.

    The loss first, the others in order of appearance.
    """
    names = {name: None for epoch in result.epochs for name in epoch.metrics}
    return sorted(names, key=lambda name: name != "loss")


def _hits(epoch: EpochEnded) -> str:
    hits, stores, bypasses = (epoch.counters.get(name, 0) for name in ("hits", "stores", "bypasses"))
    return f"{hits:.0f}/{hits + stores + bypasses:.0f}"


EPOCH: EpochColumn = column("epoch", lambda epoch: epoch.epoch + 1)
COSTS: tuple[EpochColumn, ...] = (
    column("rows/s", lambda epoch: epoch.rows_per_s, count_text),
    column("time", lambda epoch: epoch.seconds, time_text),
    column("wait", lambda epoch: epoch.wait_share, share_text),
    column("hits", _hits),
    column("cached", lambda epoch: epoch.counters.get("hit_bytes", 0), bytes_text),
    column("stored", lambda epoch: epoch.counters.get("stored_bytes", 0), bytes_text),
    column("opens", lambda epoch: epoch.counters.get("parquet_opens", 0), "{:.0f}".format),
)
UNCACHED: EpochColumn = column("uncached", lambda epoch: epoch.counters.get("bypass_bytes", 0), bytes_text)


def _metric(name: str) -> EpochColumn:
    return column(name, lambda epoch: epoch.metrics.get(name), partial(metric_text_of, name))


def _stage(name: str) -> EpochColumn:
    return column(name, lambda epoch: stage_s(epoch, name), _short_seconds)


def _short_seconds(seconds: float) -> str:
    """Format seconds in at most five characters.

    So the columns of all ten stages fit into 80.
    """
    return seconds_text(seconds) if seconds < 99_999.5 else count_text(seconds)
