"""Pictures of learning: loss and metrics, over steps or time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from forebay.events import Evaluated
from forebay.report.axes import is_drawable
from forebay.report.bars import MAX_BARS
from forebay.report.curves import Curve, Mark, Plot, curves
from forebay.report.elements import element, joined
from forebay.training.run_report.embedding_tables import PREFIX
from forebay.training.run_report.recorded_run import RecordedRun

RUNNING = "running time"
PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tokens/s per worker", ("document_tokens_per_s", "tokens_per_s")),
    ("TFLOP/s per device", ("tflops_per_s",)),
    ("MFU", ("mfu",)),
    ("peak memory", ("peak_memory_bytes",)),
)
"""Title and metrics of each picture of the throughput of language models."""
THROUGHPUT = frozenset(name for _, names in PANELS for name in names)
AXES = element(
    "p",
    element("label", Markup('<input type="checkbox" class="log"> '), "logarithmic values"),
    element("label", Markup('<input type="checkbox" class="time"> '), "over running time"),
    class_="axes",
)
"""Choice of the axes, for pictures in the same section. It needs no script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Across:
    """Axis of pictures: steps and epochs, or with `times` the running time of each step of each run."""

    times: Sequence[tuple[Sequence[float], Sequence[float]]] = ()

    def x(self, number: int, step: float, value: float) -> float:
        """Coordinate of `value`, which run `number` had at `step`."""
        return float(np.interp(step, *self.times[number])) if self.times else value

    def plot(self, title: str, x_label: str, found: Sequence[Curve]) -> Plot:
        if not self.times:
            return Plot(title=title, x_label=x_label, curves=found, whole_x=True)
        return Plot(title=title, x_label=RUNNING, curves=found, is_time=True)


def learning_pictures(runs: Sequence[RecordedRun]) -> list[Markup]:
    """Draw the loss by step, other metrics by epoch.

    Each also over the running time and with a logarithmic axis, of which the page shows one.
    """
    reports: list[Mapping[str, float]] = [each.metrics for run in runs for each in run.epochs]
    reports += [each.metrics for run in runs for each in _evaluations(run)]
    named = dict.fromkeys(name for metrics in reports for name in metrics)
    # A model may have dozens of embedding tables, with ten metrics each.
    others = [name for name in named if name != "loss" and name not in THROUGHPUT and not name.startswith(PREFIX)]
    times = [run.step_times for run in runs]
    axes = [_Across(), *([_Across(times=times)] if all(steps for steps, _ in times) else [])]
    plots = [[_loss(runs, each), *(_metric(runs, name, each) for name in others)] for each in axes]
    return [picture for plot in zip(*plots, strict=True) if (picture := _choice(plot))]


def _choice(plots: Sequence[Plot | None]) -> Markup:
    """Draw a plot by step, and over time, each with both scales."""
    drawn: list[Plot] = []
    for plot, by in zip(plots, ("by-step", "by-time") if len(plots) > 1 else ("",), strict=True):
        if plot is not None and plot.is_positive:
            drawn += [
                replace(plot, class_=f"{by} linear".strip()),
                replace(plot, class_=f"{by} log".strip(), log_y=True, y_range=None),
            ]
        elif plot is not None:
            drawn.append(replace(plot, class_=by or None))
    return joined(map(curves, drawn))


def _loss(runs: Sequence[RecordedRun], across: _Across) -> Plot | None:
    found, values = [], []
    for number, run in enumerate(runs):
        points = step_points(run, "loss")
        if not points:
            continue
        steps = [across.x(number, step, step) for step, _ in points]
        losses = np.array([loss for _, loss in points])
        values.append(losses)
        if len(runs) == 1:
            noise = list(zip(steps, losses.tolist(), strict=True))
            found.append(Curve(label="loss of a step", points=noise, series=number, kind="faint"))
        means = list(zip(steps, moving_mean(losses).tolist(), strict=True))
        label = run.name if len(runs) > 1 else "moving mean"
        found.append(Curve(label=label, points=means, series=number))
    if not found:
        return None
    # The first steps of a fresh model would flatten the rest of the curve.
    low, high = np.quantile(np.concatenate(values), (0.0, 0.995)).tolist()
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    marks = [
        Mark(x=across.x(0, epoch.step, epoch.step), title=f"end of epoch {epoch.epoch + 1}")
        for epoch in runs[0].epochs[:-1]
    ]
    shown = marks if len(runs) == 1 and len(marks) <= MAX_BARS else []
    return replace(across.plot("loss", "step", found), marks=shown, y_range=(low - margin, high + margin))


def _evaluations(run: RecordedRun) -> Sequence[Evaluated]:
    return run.result.evaluations if run.result else ()


def _metric(runs: Sequence[RecordedRun], name: str, across: _Across) -> Plot:
    is_by_step = any(name in each.metrics and not each.ends_epoch for run in runs for each in _evaluations(run))
    found = []
    for number, run in enumerate(runs):
        epochs = [epoch for epoch in run.epochs if name in epoch.metrics]
        values = {epoch.step: (epoch.step if is_by_step else epoch.epoch + 1, epoch.metrics[name]) for epoch in epochs}
        if is_by_step:
            evaluations = [each for each in _evaluations(run) if name in each.metrics]
            values |= {each.step: (each.step, each.metrics[name]) for each in evaluations}
        points = [(across.x(number, step, x), value) for step, (x, value) in sorted(values.items())]
        several = len(runs) > 1
        label, series = (run.name, number) if several else (name, 2)
        found.append(Curve(label=label, points=points, series=series))
    if is_by_step:
        return across.plot(f"{name}, of each evaluation", "step", found)
    return across.plot(f"{name}, at the end of each epoch", "epoch", found)


def step_points(run: RecordedRun, name: str) -> list[tuple[float, float]]:
    """Drawable values of a metric by step."""
    steps = run.result.steps if run.result else ()
    found = [(float(step.step), step.metrics[name]) for step in steps if name in step.metrics]
    if name == "loss":
        # Steps of an epoch that has not ended are in the timeline only.
        last = steps[-1].step if steps else 0
        newest = run.newest.progress if run.newest else ()
        found += [(float(point.step), point.loss) for point in newest if point.step > last and point.loss is not None]
    return [(step, value) for step, value in found if is_drawable(value)]


def moving_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over a thirtieth of the run.

    Around each value. The window is narrower at the ends, to avoid a lag.
    """
    half = max(len(values) // 60, 2)
    indices = np.arange(len(values))
    reach = np.minimum(np.minimum(indices, indices[::-1]), half)
    # Each window by itself: differences of sums over the run lose all digits behind one huge value.
    windows = zip(indices - reach, indices + reach + 1, strict=True)
    return np.array([values[first:stop].mean() for first, stop in windows])
