"""A sweep as three pictures: how the trials did, how many workers each had, and which configs were good."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forebay.driver.plots import FAINT, INK
from forebay.sweep.axes import Axis, axis_of
from forebay.sweep.record import Crew, Record, TrialRecord
from forebay.sweep.wording import value_text

Colour = str | tuple[float, float, float, float]
BEST, NONE = "#d1495b", "#c3cad1"
WIDTH, HEIGHT = 9.0, 4.4
MINUTES_FROM_S, HOURS_FROM_S = 300, 3 * 3600
FEW = 20
"""Fewer values than this are all shown, however far off one is."""


def as_png(figure: Figure) -> bytes:
    """The picture as a PNG file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=144)
    return picture.getvalue()


def metric_figure(record: Record) -> Figure:
    """The metric over time: a line per trial, coloured by its best value; the best one thick."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes, colours = figure.subplots(), Colours(record)
    unit, per_s = _time_unit(record.elapsed_s)
    best = record.best
    for trial in reversed(record.ranked):
        points = [(point.at_s * per_s, point.value) for point in trial.points if point.value is not None]
        if not points:
            continue
        times, values = np.array(points).T
        is_best = best is not None and trial.id == best.id
        width, size, floor = (2.4, 4.5, 4) if is_best else (1.1, 2.5, 3)
        axes.plot(times, values, "o-", color=colours.of(trial), linewidth=width, markersize=size, zorder=floor)
        if trial.state == "failed":
            axes.plot(times[-1:], values[-1:], "x", color=INK, markersize=6, zorder=5)
    _fit_values(axes, record)
    axes.set_xlabel(unit)
    axes.set_ylabel(record.metric, parse_math=False)
    axes.set_xlim(left=0)
    _plain(axes)
    colours.explain(figure, axes)
    return figure


def workers_figure(record: Record) -> Figure:
    """How many workers each trial trained with over time, stacked; the best trial at the bottom."""
    figure = Figure(figsize=(WIDTH, HEIGHT * 0.8), layout="constrained")
    axes, colours = figure.subplots(), Colours(record)
    unit, per_s = _time_unit(record.elapsed_s)
    trials = [trial for trial in record.ranked if trial.crews]
    times = sorted({0.0, record.elapsed_s, *(crew.at_s for trial in trials for crew in trial.crews)})
    if trials:
        stack = np.array([_workers_at(trial.crews, times) for trial in trials])
        axes.stackplot(
            np.array(times) * per_s,
            stack,
            step="post",
            colors=[colours.of(trial) for trial in trials],
            edgecolor="white",
            linewidth=0.5,
        )
    if record.slots:
        axes.axhline(record.slots, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(
            f"{record.slots} slots", (0, record.slots), xytext=(4, 3), textcoords="offset points", color=INK, fontsize=9
        )
    axes.set_xlabel(unit)
    axes.set_ylabel("workers")
    axes.set_xlim(0, max(record.elapsed_s * per_s, 1e-3))
    axes.set_ylim(0, 1.15 * max(record.slots or 0, axes.get_ylim()[1] / 1.05, 1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    _plain(axes)
    colours.explain(figure, axes)
    return figure


def configs_figure(record: Record) -> Figure:
    """Every trial as a line through its config to its best value; those without a value are dashed."""
    trials = record.ranked
    names = record.parameters
    drawn = [
        axis_of(name, [trial.config_at_best.get(name) for trial in trials], name in record.log_axes) for name in names
    ]
    values = [point.value if (point := trial.best(record.mode)) else None for trial in trials]
    drawn.append(axis_of(f"best {record.metric}", values, is_log=False))
    figure = Figure(figsize=(min(max(WIDTH, 1.5 * len(drawn)), 24), HEIGHT), layout="constrained")
    axes, colours = figure.subplots(), Colours(record)
    for number, trial in reversed(list(enumerate(trials))):
        heights = [axis.places[number] for axis in drawn]
        _draw_config(axes, heights, colours.of(trial), is_best=trial == record.best)
    for place, axis in enumerate(drawn):
        _draw_axis(axes, place, axis)
    axes.set_xlim(-0.35, len(drawn) - 1 + 0.45)
    axes.set_ylim(-0.04, 1.04)
    axes.set_xticks(range(len(drawn)), [axis.name for axis in drawn], color=INK, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return figure


class Colours:
    """A colour per trial, by its best value: the same one in every picture."""

    def __init__(self, record: Record) -> None:
        self._record, self._best = record, record.best
        values = [point.value for trial in record.trials.values() if (point := trial.best(record.mode))]
        numbers = np.array([value for value in values if value is not None])
        self._map = _blues(record.mode)
        self._is_one = len(set(numbers.tolist())) < 2
        low, high = _without_outliers(numbers, record.mode) if len(numbers) else (0.0, 1.0)
        self._norm = Normalize(low, high if high > low else low + 1e-9, clip=True)

    def of(self, trial: TrialRecord) -> Colour:
        """Red for the best, grey without a value."""
        if self._best is not None and trial.id == self._best.id:
            return BEST
        point = trial.best(self._record.mode)
        return NONE if point is None or point.value is None else self._map(float(self._norm(point.value)))

    def explain(self, figure: Figure, axes: Axes) -> None:
        """A scale beside the picture, and which line is the best."""
        if self._best is None:
            return
        axes.set_title(
            f"best: {self._best.id}, {self._record.metric} {value_text(self._record.best_value)}",
            color=BEST,
            loc="left",
            fontsize=10,
            parse_math=False,
        )
        if self._is_one:
            return
        bar = figure.colorbar(ScalarMappable(self._norm, self._map), ax=axes, pad=0.015, aspect=28)
        bar.set_label(f"best {self._record.metric} of a trial", color=INK, parse_math=False)
        bar.ax.tick_params(colors=INK, labelsize=8)
        bar.outline.set_visible(False)


def _blues(mode: Literal["min", "max"]) -> Colormap:
    """From pale to dark; dark is good."""
    shades = colormaps["YlGnBu"](np.linspace(0.22, 0.95, 256))
    return LinearSegmentedColormap.from_list("values", shades if mode == "max" else shades[::-1])


def _draw_config(axes: Axes, heights: list[float | None], colour: Colour, *, is_best: bool) -> None:
    """A smooth line through `heights`; what is missing is left out."""
    parts_x, parts_y = [], []
    bend = np.linspace(0, 1, 24)
    for place, (left, right) in enumerate(pairwise(heights)):
        if left is None or right is None:
            continue
        parts_x.append(place + bend)
        parts_y.append(left + (right - left) * (3 * bend**2 - 2 * bend**3))
    if parts_x:
        axes.plot(
            np.concatenate(parts_x),
            np.concatenate(parts_y),
            color=colour,
            linewidth=2.6 if is_best else 1.2,
            linestyle="--" if heights[-1] is None else "-",
            alpha=1.0 if is_best else 0.85,
            zorder=4 if is_best else 3,
        )


def _draw_axis(axes: Axes, place: int, axis: Axis) -> None:
    axes.plot([place, place], [0, 1], color=INK, linewidth=1.0, zorder=5)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    for height, text in axis.ticks:
        axes.plot([place - 0.015, place + 0.015], [height, height], color=INK, linewidth=1.0, zorder=5)
        axes.annotate(
            text,
            (place, height),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
            bbox=box,
            zorder=6,
            parse_math=False,
        )


def _workers_at(crews: tuple[Crew, ...], times: list[float]) -> np.ndarray:
    begins = np.array([crew.at_s for crew in crews])
    workers = np.array([0, *(crew.workers for crew in crews)])
    found: np.ndarray = workers[np.searchsorted(begins, times, side="right")]
    return found


def _fit_values(axes: Axes, record: Record) -> None:
    """The worst values of fresh models would press the rest of the picture flat."""
    values = np.array([p.value for trial in record.trials.values() for p in trial.points if p.value is not None])
    if len(values) == 0:
        return
    low, high = _without_outliers(values, record.mode)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    axes.set_ylim(low - margin, high + margin)


def _without_outliers(values: np.ndarray, mode: Literal["min", "max"]) -> tuple[float, float]:
    """Bounds of `values`; those that are far worse than most lie beyond them."""
    low, high = float(values.min()), float(values.max())
    if len(values) < FEW:
        return low, high
    first, third = np.quantile(values, (0.25, 0.75))
    reach = 8 * (third - first)
    if reach == 0:
        return low, high
    return (max(low, first - reach), high) if mode == "max" else (low, min(high, third + reach))


def _time_unit(elapsed_s: float) -> tuple[str, float]:
    """What to call the axis of time, and how much of it a second is."""
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
