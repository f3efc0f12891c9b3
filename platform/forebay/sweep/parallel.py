"""The configs of a sweep as parallel coordinates: which of them were good."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forebay.driver.plots import INK
from forebay.sweep.axes import Axis, axis_of, cut
from forebay.sweep.colours import Colours
from forebay.sweep.plots import HEIGHT, WIDTH
from forebay.sweep.record import Record

RANGES = ("Float(", "Integer(")
"""How the record calls what numbers are drawn from that has a scale of its own."""


def configs_figure(record: Record) -> Figure:
    """Every trial as a line through its config to its best value; those without a value are dashed."""
    trials = record.ranked
    names = record.parameters
    drawn = [
        axis_of(name, [trial.config_at_best.get(name) for trial in trials], _is_log(record, name)) for name in names
    ]
    values = [point.value if (point := trial.best(record.mode)) else None for trial in trials]
    drawn.append(axis_of(f"best {record.metric}", values))
    figure = Figure(figsize=(min(max(WIDTH, 1.5 * len(drawn)), 24), HEIGHT), layout="constrained")
    axes, colours = figure.subplots(), Colours(record)
    for number, trial in reversed(list(enumerate(trials))):
        heights = [axis.places[number] for axis in drawn]
        _draw_config(axes, heights, colours.of(trial), is_best=trial == record.best)
    for place, axis in enumerate(drawn):
        _draw_axis(axes, place, axis)
    axes.set_xlim(-0.35, len(drawn) - 1 + 0.45)
    axes.set_ylim(-0.04, 1.04)
    axes.set_xticks(range(len(drawn)), [cut(axis.name) for axis in drawn], color=INK, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return figure


def _is_log(record: Record, name: str) -> bool | None:
    """None where what it was drawn from does not tell, as for a list of choices."""
    if name in record.log_axes:
        return True
    return False if record.space.get(name, "").startswith(RANGES) else None


def _draw_config(axes: Axes, heights: list[float | None], colour: str, *, is_best: bool) -> None:
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
