"""Plots of a sweep over time: the metric per trial, and the workers per trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from forebay.report.style import FAINT, INK
from forebay.sweep.record.record import Record, State, TrialRecord, WorkerCount
from forebay.sweep.report.colors import Colors, without_outliers

WIDTH, HEIGHT = 9.0, 4.4
MINUTES_FROM_S, HOURS_FROM_S = 300, 3 * 3600
FAR = 2.0
"""Largest ratio of deadline to elapsed time at which the deadline is shown. A later one would flatten the plot."""
NUM_NAMED = 5
"""Number of best trials that are named at the ends of their lines."""
APART_POINTS = (34.0, 9.0)
"""Smallest distance of two names, across and up. A closer one is left out."""
ENDS: Mapping[State, str] = {"running": ">", "paused": "s", "stopped": "|", "failed": "x"}
"""End markers of lines. Finished trials have none."""


def metric_figure(record: Record) -> Figure:
    """Plot the metric over time: one line per trial, colored by its best value, the best thick, the best few named."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes, colors = figure.subplots(), Colors(record)
    _, per_s = _time_unit(record.elapsed_s)
    ends = {}
    for trial in reversed(record.ranked):
        points = [(point.at_s * per_s, point.value) for point in trial.points if point.value is not None]
        if not points:
            continue
        times, values = np.array(points).T
        is_best = trial == record.best
        width, size, floor = (2.4, 4.5, 4) if is_best else (1.1, 2.5, 3)
        axes.plot(times, values, "o-", color=colors.of(trial), linewidth=width, markersize=size, zorder=floor)
        _draw_end(axes, trial, points[-1], colors.of(trial))
        ends[trial.id] = points[-1]
    _fit_values(axes, record)
    axes.set_ylabel(record.metric, parse_math=False)
    _show_time(axes, record, at_top=record.mode == "min")
    _plain(axes)
    _explain_ends(axes, record)
    colors.explain(figure, axes)
    _name_best(figure, axes, [(trial, ends[trial.id]) for trial in record.ranked if trial.id in ends][:NUM_NAMED])
    return figure


def workers_figure(record: Record) -> Figure:
    """Plot workers over time, stacked by trial, the best trial at the bottom."""
    figure = Figure(figsize=(WIDTH, HEIGHT * 0.8), layout="constrained")
    axes, colors = figure.subplots(), Colors(record)
    _, per_s = _time_unit(record.elapsed_s)
    trials = [trial for trial in record.ranked if trial.worker_counts]
    times = sorted({0.0, record.elapsed_s, *(count.at_s for trial in trials for count in trial.worker_counts)})
    if trials:
        stack = np.array([_workers_at(trial.worker_counts, times) for trial in trials])
        axes.stackplot(
            np.array(times) * per_s,
            stack,
            step="post",
            colors=[colors.of(trial) for trial in trials],
            edgecolor="white",
            linewidth=0.5,
        )
    if record.slots:
        axes.axhline(record.slots, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(
            f"{record.slots} slots", (0, record.slots), xytext=(4, 3), textcoords="offset points", color=INK, fontsize=9
        )
    axes.set_ylabel("workers")
    axes.set_ylim(0, 1.15 * max(record.slots or 0, axes.get_ylim()[1] / 1.05, 1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    _show_time(axes, record)
    _plain(axes)
    colors.explain(figure, axes)
    return figure


def _draw_end(axes: Axes, trial: TrialRecord, end: tuple[float, float], color: str) -> None:
    """Mark the end of a line with the trial's state."""
    if marker := ENDS.get(trial.state):
        edge = INK if trial.state == "failed" else color
        axes.plot(*end, marker, color=edge, markerfacecolor="white", markersize=7.5, markeredgewidth=1.5, zorder=5)


def _explain_ends(axes: Axes, record: Record) -> None:
    found = {trial.state for trial in record.trials.values() if trial.last}
    lines = [
        Line2D([], [], linestyle="", marker=marker, color=INK, markerfacecolor="white", label=state)
        for state, marker in ENDS.items()
        if state in found
    ]
    if lines:
        axes.legend(
            handles=lines,
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=len(lines),
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            handletextpad=0.1,
            columnspacing=1.0,
            borderpad=0.1,
        )


def _name_best(figure: Figure, axes: Axes, ends: Iterable[tuple[TrialRecord, tuple[float, float]]]) -> None:
    """Write the ends of trial ids beside the ends of their lines, if there is space."""
    figure.draw_without_rendering()  # fixes the layout, and with it the positions of points
    taken: list[np.ndarray] = []
    for trial, end in ends:
        place = axes.transData.transform(end) * 72 / figure.dpi
        if any((abs(place - other) < APART_POINTS).all() for other in taken):
            continue
        taken.append(place)
        axes.annotate(
            trial.id.rpartition("_")[2],
            end,
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=7.5,
            color=INK,
            zorder=6,
            parse_math=False,
        )


def _show_time(axes: Axes, record: Record, *, at_top: bool = True) -> None:
    """Draw the time axis, which all plots of a sweep share, and the deadline unless it is far off.

    Its label is at the top or at the bottom, away from good values.
    """
    unit, per_s = _time_unit(record.elapsed_s)
    deadline_s, last_s = record.deadline_at_s, record.elapsed_s
    if deadline_s is not None and deadline_s <= FAR * record.elapsed_s:
        last_s = max(last_s, deadline_s)
        axes.axvline(deadline_s * per_s, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2)
        axes.annotate(
            "deadline",
            (deadline_s * per_s, 1 if at_top else 0),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -3 if at_top else 3),
            textcoords="offset points",
            ha="right",
            va="top" if at_top else "bottom",
            color=INK,
            fontsize=9,
        )
    axes.set_xlabel(f"{unit} since the sweep began")
    axes.set_xlim(0, max(1.01 * last_s * per_s, 1e-3))


def _workers_at(worker_counts: tuple[WorkerCount, ...], times: list[float]) -> np.ndarray:
    begins = np.array([count.at_s for count in worker_counts])
    workers = np.array([0, *(count.workers for count in worker_counts)])
    found: np.ndarray = workers[np.searchsorted(begins, times, side="right")]
    return found


def _fit_values(axes: Axes, record: Record) -> None:
    """Choose the value range without the worst values of fresh models, which would flatten the plot."""
    values = np.array([p.value for trial in record.trials.values() for p in trial.points if p.value is not None])
    if len(values) == 0:
        return
    low, high = without_outliers(values, record.mode)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    axes.set_ylim(low - margin, high + margin)


def _time_unit(elapsed_s: float) -> tuple[str, float]:
    """Unit of the time axis, and its length of one second."""
    if elapsed_s >= HOURS_FROM_S:
        return "hours", 1 / 3600
    return ("minutes", 1 / 60) if elapsed_s >= MINUTES_FROM_S else ("seconds", 1.0)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for spine in axes.spines.values():
        spine.set_color(FAINT)
