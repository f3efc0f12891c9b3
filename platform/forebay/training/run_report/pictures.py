"""Pictures of runs.

Time, throughput and workers of one or several runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from forebay.events import EpochEnded
from forebay.report.axes import tick_text
from forebay.report.bars import MAX_BARS, Bar, bars
from forebay.report.curves import Curve, Mark, Plot, curves
from forebay.runtime.formatting import bytes_text, count_text, rate_text
from forebay.training.run_report.learning import PANELS, RUNNING, step_points
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
        plot = Plot(title=title, x_label=RUNNING, curves=found, marks=marks, zero=True, is_time=True)
        pictures.append(curves(plot))
    for title, names in PANELS:
        curve_list = [
            Curve(label=name if len(runs) == 1 else f"{run.name} {name}", points=points, series=series)
            for number, run in enumerate(runs)
            for series, name in enumerate(names if len(runs) == 1 else names[-1:], number)
            if (points := step_points(run, name))
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
    title = "workers that train, and events"
    plot = Plot(title=title, x_label=RUNNING, curves=[curve], marks=marks, zero=True, whole_y=True, is_time=True)
    return curves(plot)


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


def _grouped(epochs: Sequence[EpochEnded]) -> list[Sequence[EpochEnded]]:
    """Group neighboring epochs.

    There are at most `MAX_BARS` groups.
    """
    size = -(-len(epochs) // MAX_BARS) or 1
    return [epochs[begin : begin + size] for begin in range(0, len(epochs), size)]


def _label(group: Sequence[EpochEnded]) -> str:
    first, last = group[0].epoch + 1, group[-1].epoch + 1
    return f"epoch {first}" if first == last else f"{count_text(first)} to {count_text(last)}"
