"""Plots of a run: metrics over steps, time by epoch, and the throughput of language models."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forebay.events import EpochEnded
from forebay.formatting import metric_text, rate_text
from forebay.report.stages import BESIDE, stage_s, stages_of
from forebay.runs.result import Result
from forebay.storage.filesystem import below, resolve

LEARNING_FILE = "loss_and_auc.png"
TIME_FILE = "time_per_epoch.png"
THROUGHPUT_FILE = "throughput.png"

INK, FAINT = "#22313f", "#d5dbe1"
LOSS = "#1f77b4"
METRIC_COLOURS = ("#d1495b", "#2e8b57", "#8a5fbf", "#b8860b")
Part = tuple[str, str, Callable[[EpochEnded], float]]
PARTS: tuple[Part, ...] = (
    ("waiting for data", "#d1495b", lambda epoch: epoch.wait_s),
    ("training step", "#1f77b4", lambda epoch: epoch.step_s),
    ("evaluation", "#e3a72f", lambda epoch: epoch.eval_s),
    ("commit", "#7d8a97", lambda epoch: epoch.checkpoint_s),
)
PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tokens/s per worker", ("tokens_per_s", "document_tokens_per_s")),
    ("TFLOP/s per device", ("tflops_per_s",)),
    ("MFU", ("mfu",)),
    ("peak memory, bytes", ("peak_memory_bytes",)),
)
"""Label and metrics of each plot of the throughput. The last metric of a plot is drawn on top."""
THROUGHPUT = frozenset(name for _, names in PANELS for name in names)

STAGE_COLOURS = dict(
    zip(BESIDE, ("#4c78a8", "#9ecae9", "#f58518", "#ffbf79", "#54a24b", "#bab0ac", "#b279a2"), strict=True)
)


def write_plots(result: Result) -> list[str]:
    """Write `loss_and_auc.png` and `time_per_epoch.png` into the run's folder, and `throughput.png` for a language
    model. Returns their paths.
    """
    place = resolve(result.path)
    figures = {LEARNING_FILE: learning_figure(result), TIME_FILE: time_figure(result)}
    if measured_panels(result):
        figures[THROUGHPUT_FILE] = throughput_figure(result)
    paths = []
    for name, figure in figures.items():
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=144)
        with place.fs.open_output_stream(f"{place.path}/{name}") as stream:
            stream.write(picture.getvalue())
        paths.append(below(result.path, name))
    return paths


def learning_figure(result: Result) -> Figure:
    """Plot the loss of the reported steps with its moving mean. Below it, each other metric at the end of its epoch."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    loss, others = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_loss(loss, result)
    _draw_others(others, result)
    others.set_xlabel("step")
    for axes in (loss, others):
        _plain(axes)
        for epoch in result.epochs[:-1]:
            axes.axvline(epoch.step, color=FAINT, linewidth=1, zorder=0)
    return _titled(figure, result)


def time_figure(result: Result) -> Figure:
    """Plot one bar per epoch: waiting for data, training steps, evaluation and checkpoints, with its rows/s.

    If stages were counted, a second plot shows the work of data workers and loaders beside training.
    """
    stages = [stage for stage in stages_of(result.epochs) if stage in BESIDE]
    height = 1.9 + 0.5 * max(len(result.epochs), 2)
    figure = Figure(figsize=(8, height * (2 if stages else 1)), layout="constrained")
    places = figure.subplots(2 if stages else 1, 1, squeeze=False)[:, 0]
    ends = _draw_bars(places[0], result.epochs, PARTS)
    for place, (end, epoch) in enumerate(zip(ends, result.epochs, strict=True), 1):
        text = rate_text(epoch.rows_per_s)
        places[0].annotate(text, (end, place), xytext=(6, 0), textcoords="offset points", va="center", color=INK)
    places[0].set_xlabel("seconds (mean over workers)")
    if stages:
        _draw_bars(places[1], result.epochs, [(s, STAGE_COLOURS[s], partial(stage_s, stage=s)) for s in stages])
        places[1].set_xlabel("seconds of data workers and loaders, beside training (summed)")
    return _titled(figure, result)


def throughput_figure(result: Result) -> Figure:
    """Plot tokens/s, FLOP/s, their share of the device's peak and the peak memory of the reported steps."""
    panels = measured_panels(result)
    figure = Figure(figsize=(8, 1 + 1.8 * len(panels)), layout="constrained")
    places = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, names) in zip(places, panels, strict=True):
        for name, colour in zip(names, (FAINT, LOSS)[-len(names) :], strict=True):
            points = [(step.step, step.metrics[name]) for step in result.steps if name in step.metrics]
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4, label=name)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        _plain(axes)
        if len(names) > 1:
            axes.legend(frameon=False, labelcolor=INK)
    places[-1].set_xlabel("step")
    return _titled(figure, result)


def measured_panels(result: Result) -> list[tuple[str, tuple[str, ...]]]:
    """Plots of the throughput that the run has metrics for."""
    seen = {name for step in result.steps for name in step.metrics}
    panels = [(label, tuple(name for name in names if name in seen)) for label, names in PANELS]
    return [(label, names) for label, names in panels if names]


def _draw_bars(axes: Axes, epochs: Sequence[EpochEnded], parts: Sequence[Part]) -> np.ndarray:
    """Draw a bar per epoch, cut into `parts`. Returns the end of each in seconds."""
    places = np.arange(1, len(epochs) + 1)
    begin = np.zeros(len(epochs))
    for label, colour, seconds in parts:
        widths = np.array([seconds(epoch) for epoch in epochs])
        axes.barh(places, widths, left=begin, color=colour, label=label, height=0.62)
        begin += widths
    axes.set_yticks(places, [f"epoch {epoch.epoch + 1}" for epoch in epochs])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(begin, default=1.0) or 1.0)
    _plain(axes, grid="x")
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=len(parts), frameon=False, labelcolor=INK, columnspacing=1.0
    )
    return begin


def _titled(figure: Figure, result: Result) -> Figure:
    figure.suptitle(result.name, color=INK, x=0.01, ha="left", fontsize=12)
    return figure


def _draw_loss(axes: Axes, result: Result) -> None:
    points = [(step.step, step.metrics["loss"]) for step in result.steps if "loss" in step.metrics]
    points = [(step, value) for step, value in points if math.isfinite(value)]
    axes.set_ylabel("loss")
    if not points:
        return
    steps, values = np.array(points).T
    axes.plot(steps, values, color=LOSS, alpha=0.25, linewidth=0.8, label="step")
    axes.plot(steps, _moving_mean(values), color=LOSS, linewidth=1.8, label="moving mean")
    # The first steps of a fresh model would flatten the rest of the curve.
    low, high = np.quantile(values, (0.0, 0.995))
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    axes.set_ylim(low - margin, high + margin)
    axes.legend(frameon=False, labelcolor=INK)


def _draw_others(axes: Axes, result: Result) -> None:
    named = dict.fromkeys(name for epoch in result.epochs for name in epoch.metrics)
    names = [name for name in named if name != "loss" and name not in THROUGHPUT]
    axes.set_ylabel(names[0] if len(names) == 1 else "held-out metrics")
    for number, name in enumerate(names):
        points = [(epoch.step, epoch.metrics[name]) for epoch in result.epochs if name in epoch.metrics]
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, "o-", color=METRIC_COLOURS[number % len(METRIC_COLOURS)], linewidth=1.5, label=name)
        for step, value in points:
            axes.annotate(
                metric_text(value), (step, value), xytext=(0, 7), textcoords="offset points", ha="center", color=INK
            )
    axes.margins(y=0.25)
    if len(names) > 1:
        axes.legend(frameon=False, labelcolor=INK)


def _moving_mean(values: np.ndarray) -> np.ndarray:
    """Mean over a thirtieth of the run around each value. The window is narrower at the ends, to avoid a lag."""
    half = max(len(values) // 60, 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    reach = np.minimum(np.minimum(places, places[::-1]), half)
    means: np.ndarray = (sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1)
    return means


def _plain(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    for spine in axes.spines.values():
        spine.set_color(FAINT)
