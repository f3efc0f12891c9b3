"""Pictures of runs.

Learning, time, throughput and workers of one or several runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from forebay.events import EpochEnded, Evaluated
from forebay.report.axes import tick_text
from forebay.report.bars import MAX_BARS, Bar, bars
from forebay.report.curves import Curve, Mark, Plot, curves
from forebay.runtime.formatting import bytes_text, count_text, rate_text
from forebay.training.run_report.embedding_tables import PREFIX
from forebay.training.run_report.recorded_run import RecordedRun
from forebay.training.run_report.stages import BESIDE, stage_s, stages_of

PARTS = {
    "waiting for data": "var(--series-1)",
    "training step": "var(--series-0)",
    "evaluation": "var(--series-4)",
    "checkpoint": "var(--quiet)",
}
"""Parts of an epoch's time, with their colors."""
STAGE_COLOURS = ("#4c78a8", "#9ecae9", "#f58518", "#ffbf79", "#54a24b", "#bab0ac", "#b279a2", "#e45756")
PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tokens/s per worker", ("document_tokens_per_s", "tokens_per_s")),
    ("TFLOP/s per device", ("tflops_per_s",)),
    ("MFU", ("mfu",)),
    ("peak memory", ("peak_memory_bytes",)),
)
"""Title and metrics of each picture of the throughput of language models."""
THROUGHPUT = frozenset(name for _, names in PANELS for name in names)


def learning_pictures(runs: Sequence[RecordedRun]) -> list[Markup]:
    """Draw the loss by step, other metrics by epoch."""
    reports = [each.metrics for run in runs for each in run.epochs]
    reports += [each.metrics for run in runs for each in _evaluations(run)]
    named = dict.fromkeys(name for metrics in reports for name in metrics)
    # A model may have dozens of embedding tables, with ten metrics each.
    others = [name for name in named if name != "loss" and name not in THROUGHPUT and not name.startswith(PREFIX)]
    return [picture for picture in (_loss(runs), *(_metric(runs, name) for name in others)) if picture is not None]


def _loss(runs: Sequence[RecordedRun]) -> Markup | None:
    found, values = [], []
    for number, run in enumerate(runs):
        points = _step_points(run, "loss")
        if not points:
            continue
        steps, losses = (np.array(each) for each in zip(*points, strict=True))
        values.append(losses)
        if len(runs) == 1:
            found.append(Curve(label="loss of a step", points=points, series=number, kind="faint"))
        means = list(zip(steps.tolist(), _moving_mean(losses).tolist(), strict=True))
        label = run.name if len(runs) > 1 else "moving mean"
        found.append(Curve(label=label, points=means, series=number))
    if not found:
        return None
    # The first steps of a fresh model would flatten the rest of the curve.
    low, high = np.quantile(np.concatenate(values), (0.0, 0.995)).tolist()
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    marks = [Mark(x=epoch.step, title=f"end of epoch {epoch.epoch + 1}") for epoch in runs[0].epochs[:-1]]
    shown = marks if len(runs) == 1 and len(marks) <= MAX_BARS else []
    return curves(Plot(title="loss", x_label="step", curves=found, marks=shown, y_range=(low - margin, high + margin)))


def _evaluations(run: RecordedRun) -> Sequence[Evaluated]:
    return run.result.evaluations if run.result else ()


def _metric(runs: Sequence[RecordedRun], name: str) -> Markup:
    if any(name in each.metrics and not each.ends_epoch for run in runs for each in _evaluations(run)):
        return _metric_by_step(runs, name)
    found = [
        Curve(
            label=run.name if len(runs) > 1 else name,
            points=[(epoch.epoch + 1, epoch.metrics[name]) for epoch in run.epochs if name in epoch.metrics],
            series=number if len(runs) > 1 else 2,
        )
        for number, run in enumerate(runs)
    ]
    return curves(Plot(title=f"{name}, at the end of each epoch", x_label="epoch", curves=found, whole_x=True))


def _metric_by_step(runs: Sequence[RecordedRun], name: str) -> Markup:
    found = []
    for number, run in enumerate(runs):
        values = {each.step: each.metrics[name] for each in run.epochs if name in each.metrics}
        values |= {each.step: each.metrics[name] for each in _evaluations(run) if name in each.metrics}
        several = len(runs) > 1
        curve = Curve(
            label=run.name if several else name, points=sorted(values.items()), series=number if several else 2
        )
        found.append(curve)
    return curves(Plot(title=f"{name}, of each evaluation", x_label="step", curves=found, whole_x=True))


def epoch_bars(run: RecordedRun) -> Markup:
    """Draw a bar per epoch.

    Waiting for data, steps, evaluation, checkpoints, with its rows per second.
    """
    groups = _grouped(run.epochs)
    rows = [
        Bar(
            label=_label(group),
            parts=[
                sum(epoch.wait_s for epoch in group),
                sum(epoch.step_s for epoch in group),
                sum(epoch.eval_s for epoch in group),
                sum(epoch.checkpoint_s for epoch in group),
            ],
            end=rate_text(sum(epoch.rows for epoch in group) / (sum(epoch.seconds for epoch in group) or math.inf)),
        )
        for group in groups
    ]
    return bars("Seconds of each epoch, as a mean over workers", rows, PARTS)


def stage_bars(run: RecordedRun) -> Markup | None:
    """Draw a bar per epoch: work during training.

    The work of data workers and loaders. None if it was not counted.
    """
    title = "Seconds of data workers and loaders, beside training, summed over threads"
    return _stage_bars(title, [(_label(group), group, 1) for group in _grouped(run.epochs)])


def run_stage_bars(runs: Sequence[RecordedRun]) -> Markup | None:
    """Draw a bar per run: work during training.

    A mean over its epochs. None if no run has counted it.
    """
    title = "Seconds of data workers and loaders in an epoch, as a mean over epochs, summed over threads"
    return _stage_bars(title, [(_short(run.name), run.epochs, len(run.epochs) or 1) for run in runs])


def _stage_bars(title: str, groups: Sequence[tuple[str, Sequence[EpochEnded], int]]) -> Markup | None:
    """Draw bars of labelled epochs.

    Seconds are divided by a number.
    """
    counted = stages_of(tuple(epoch for _, epochs, _ in groups for epoch in epochs))
    stages = [stage for stage in counted if stage in BESIDE]
    if not stages:
        return None
    colors = dict(zip(BESIDE, STAGE_COLOURS, strict=True))
    rows = [
        Bar(label=label, parts=[sum(stage_s(epoch, stage) for epoch in epochs) / number for stage in stages])
        for label, epochs, number in groups
    ]
    return bars(title, rows, {stage: colors[stage] for stage in stages})


def run_bars(runs: Sequence[RecordedRun]) -> Markup:
    """One bar per run: the mean of its epochs."""
    rows = []
    for run in runs:
        count = len(run.epochs) or 1
        epochs = run.epochs
        sums = (
            sum(epoch.wait_s for epoch in epochs),
            sum(epoch.step_s for epoch in epochs),
            sum(epoch.eval_s for epoch in epochs),
            sum(epoch.checkpoint_s for epoch in epochs),
        )
        rows.append(Bar(label=_short(run.name), parts=[each / count for each in sums], end=rate_text(run.rows_per_s)))
    return bars("Seconds of an epoch, as a mean over epochs and workers", rows, PARTS)


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"


def throughput_pictures(runs: Sequence[RecordedRun], marks: Sequence[Mark] = ()) -> list[Markup]:
    """Draw the throughput over the running time.

    Rows per second, and numbers of language models over steps.
    """
    found = [
        Curve(label=run.name if len(runs) > 1 else "rows/s", points=rate_points(run), series=number, kind="steps")
        for number, run in enumerate(runs)
    ]
    pictures = []
    if any(curve.points for curve in found):
        title = "rows per second, over all workers"
        plot = Plot(title=title, x_label="seconds of running time", curves=found, marks=marks, zero=True)
        pictures.append(curves(plot))
    for title, names in PANELS:
        curve_list = [
            Curve(label=name if len(runs) == 1 else f"{run.name} {name}", points=points, series=series)
            for number, run in enumerate(runs)
            for series, name in enumerate(names if len(runs) == 1 else names[-1:], number)
            if (points := _step_points(run, name))
        ]
        if curve_list:
            format_y = bytes_text if title == "peak memory" else tick_text
            pictures.append(curves(Plot(title=title, x_label="step", curves=curve_list, zero=True, format_y=format_y)))
    return pictures


def workers_picture(run: RecordedRun, marks: Sequence[Mark]) -> Markup | None:
    """Draw the number of workers over time.

    The running time, with numbered events. None without a timeline.
    """
    points: list[tuple[float, float]] = []
    for begin_s, start in run.starts():
        points.append((begin_s, 0.0))
        for event in start.events:
            if event.kind == "Started":
                points.append((begin_s + event.at_s, float(event.facts["world_size"])))
            elif event.kind in ("Failed", "Finished"):
                points.append((begin_s + event.at_s, 0.0))
        points.append((begin_s + start.last_s, points[-1][1]))
    if not points:
        return None
    curve = Curve(label="workers", points=points, kind="steps")
    title, across = "workers that train, and events", "seconds of running time"
    return curves(Plot(title=title, x_label=across, curves=[curve], marks=marks, zero=True, whole_y=True))


def rate_points(run: RecordedRun) -> list[tuple[float, float]]:
    """Return the rows per second between points of progress.

    Of points that are far enough apart to measure it. 0 while nothing trains.
    """
    points: list[tuple[float, float]] = []
    spacing_s = max(run.seconds / 120, 0.5)
    for begin_s, start in run.starts():
        before = None
        for point in start.progress:
            if before is None or point.step <= before.step:
                points += [(begin_s + (before or point).at_s, 0.0), (begin_s + point.at_s, 0.0)]
                before = point
            elif point.at_s - before.at_s >= spacing_s:
                rate = max(point.rows - before.rows, 0) / (point.at_s - before.at_s)
                points += [(begin_s + before.at_s, rate), (begin_s + point.at_s, rate)]
                before = point
    return points


def _step_points(run: RecordedRun, name: str) -> list[tuple[float, float]]:
    steps = run.result.steps if run.result else ()
    found = [(float(step.step), step.metrics[name]) for step in steps if name in step.metrics]
    if name == "loss":
        # Steps of an epoch that has not ended are in the timeline only.
        last = steps[-1].step if steps else 0
        newest = run.newest.progress if run.newest else ()
        found += [(float(point.step), point.loss) for point in newest if point.step > last and point.loss is not None]
    return [(step, value) for step, value in found if math.isfinite(value)]


def _moving_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over a thirtieth of the run.

    Around each value. The window is narrower at the ends, to avoid a lag.
    """
    half = max(len(values) // 60, 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    indices = np.arange(len(values))
    reach = np.minimum(np.minimum(indices, indices[::-1]), half)
    means: np.ndarray = (sums[indices + reach + 1] - sums[indices - reach]) / (2 * reach + 1)
    return means


def _grouped(epochs: Sequence[EpochEnded]) -> list[Sequence[EpochEnded]]:
    """Group neighboring epochs.

    There are at most `MAX_BARS` groups.
    """
    size = -(-len(epochs) // MAX_BARS) or 1
    return [epochs[begin : begin + size] for begin in range(0, len(epochs), size)]


def _label(group: Sequence[EpochEnded]) -> str:
    first, last = group[0].epoch + 1, group[-1].epoch + 1
    return f"epoch {first}" if first == last else f"{count_text(first)} to {count_text(last)}"
