"""Pictures of a sweep over time: metric and workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from forebay.report.axes import PlotAxis
from forebay.report.curves import Curve
from forebay.report.elements import element
from forebay.report.picture import INK, PAPER, Picture, PlotArea, dots, label, turned
from forebay.runtime.formatting import metric_text
from forebay.sweep.record.record import Record, State, TrialRecord, WorkerCount
from forebay.sweep.report.colors import BEST, Colors, without_outliers

WIDTH, HEIGHT = 620, 340
"""As wide as half a screen: two stand side by side, and a phone shows one whole."""
LEFT, RIGHT, TOP, BOTTOM = 74, 108, 34, 46
MINUTES_FROM_S, HOURS_FROM_S = 300, 3 * 3600
FAR = 2.0
"""Largest ratio of deadline to elapsed time at which the deadline is shown. A later one would flatten the plot."""
NUM_NAMED = 5
"""Number of best trials that are named at the ends of their lines."""
APART = (48.0, 13.0)
"""Smallest distance of two names, across and up. A closer one is left out."""
ENDS: dict[State, str] = {
    "running": "M-4 -5L5 0L-4 5Z",
    "paused": "M-4 -4H4V4H-4Z",
    "stopped": "M0 -6V6",
    "failed": "M-4 -4L4 4M-4 4L4 -4",
}
"""End markers of lines, as paths around the origin. Finished trials have none."""


def metric_picture(record: Record) -> Picture:
    """Draw the metric over time, one line per trial.

    The best is red and on top, the best few are named.
    """
    colors, per_s = Colors(record), _time_unit(record.elapsed_s)[1]
    lines = {trial.id: _points(trial, per_s) for trial in record.ranked}
    # Below the name of the best trial, which may be long.
    key = _ends_key(record, TOP + 4)
    top = TOP + 20 if key else TOP
    area = PlotArea(_time_axis(record, per_s), PlotAxis(*_value_range(record), HEIGHT - BOTTOM, top))
    best, drawn = record.best, [trial for trial in record.ranked if lines[trial.id]]
    content = [
        *area.grid(_time_label(record)),
        turned(record.metric, 14, (top + HEIGHT - BOTTOM) / 2),
        *_deadline(record, area, at_top=record.mode == "min"),
        *(_line(trial, lines[trial.id], area, colors.of(trial), is_best=trial is best) for trial in reversed(drawn)),
        *_names([(trial.id, lines[trial.id][-1]) for trial in drawn[:NUM_NAMED]], area),
        *_head(colors),
        *key,
        *colors.explain(WIDTH - RIGHT + 14, top, HEIGHT - BOTTOM),
    ]
    return Picture(title=f"{record.metric} over time", width=WIDTH, height=HEIGHT, content=tuple(content))


def workers_picture(record: Record) -> Picture:
    """Draw workers over time, stacked by trial.

    The best trial is at the bottom.
    """
    height, colors, per_s = round(0.8 * HEIGHT), Colors(record), _time_unit(record.elapsed_s)[1]
    trials = [trial for trial in record.ranked if trial.worker_counts]
    times = sorted({0.0, record.elapsed_s, *(count.at_s for trial in trials for count in trial.worker_counts)})
    edges = np.cumsum([np.zeros(len(times)), *(_workers_at(trial.worker_counts, times) for trial in trials)], axis=0)
    highest = max(record.slots or 0, edges[-1].max(), 1)
    area = PlotArea(_time_axis(record, per_s), PlotAxis(0.0, 1.15 * highest, height - BOTTOM, TOP))
    shown = [time * per_s for time in times]
    stack = [
        _layer(trial, _area_path(area, shown, low, high), colors)
        for trial, (low, high) in zip(trials, pairwise(edges), strict=True)
    ]
    content = [
        *area.grid(_time_label(record), whole_y=True),
        turned("workers", 14, (TOP + height - BOTTOM) / 2),
        *stack,
        *_deadline(record, area),
        *_slots(record.slots, area),
        *_head(colors),
        *colors.explain(WIDTH - RIGHT + 14, TOP, height - BOTTOM),
    ]
    return Picture(title="Workers over time", width=WIDTH, height=height, content=tuple(content))


def _points(trial: TrialRecord, per_s: float) -> Sequence[tuple[float, float]]:
    """Return the points of a trial that can be drawn."""
    points = [(point.at_s * per_s, point.value) for point in trial.points if point.value is not None]
    return Curve(label=trial.id, points=points).finite


def _line(
    trial: TrialRecord, points: Sequence[tuple[float, float]], area: PlotArea, color: str, *, is_best: bool
) -> Markup:
    """Draw a trial's points, and its state at the end."""
    titles = [f"{trial.id} {metric_text(value)}" for _, value in points]
    at = [(area.across(x), area.up(y)) for x, y in points]
    line = element(
        "path",
        element("title", trial.id),
        d=area.path(points),
        fill="none",
        stroke=color,
        stroke_width=3 if is_best else 1.4,
        stroke_linejoin="round",
    )
    return element("g", line, dots(at, color, titles, 3.2 if is_best else 1.9), _end(trial.state, *at[-1], color))


def _end(state: State, x: float, y: float, color: str) -> Markup:
    """Draw the marker of a state. Empty for finished."""
    if (shape := ENDS.get(state)) is None:
        return Markup()
    edge = INK if state == "failed" else color
    return element("path", d=shape, transform=f"translate({x:.1f} {y:.1f})", fill=PAPER, stroke=edge, stroke_width=1.8)


def _ends_key(record: Record, bottom: float) -> list[Markup]:
    """Explain the markers that are drawn.

    At the right, in a line that ends at `bottom`.
    """
    states = {trial.state for trial in record.trials.values() if trial.last}
    parts, x = [], float(WIDTH - RIGHT)
    for state in [state for state in reversed(ENDS) if state in states]:
        parts.append(label(state, x, bottom, "end"))
        x -= 7.8 * len(state) + 8
        parts.append(_end(state, x, bottom - 4.5, INK))
        x -= 18
    return parts[::-1]


def _names(ends: Iterable[tuple[str, tuple[float, float]]], area: PlotArea) -> list[Markup]:
    """Name trials at the ends of their lines.

    By the ends of their ids, where there is space.
    """
    parts: list[Markup] = []
    taken: list[tuple[float, float]] = []
    for trial, (x, y) in ends:
        at = area.across(x), area.up(y)
        if any(abs(at[0] - other[0]) < APART[0] and abs(at[1] - other[1]) < APART[1] for other in taken):
            continue
        taken.append(at)
        has_room = at[0] + APART[0] < area.across.end  # the color bar begins there
        aside, anchor = (7, "start") if has_room else (-7, "end")
        parts.append(label(trial.rpartition("_")[2], at[0] + aside, at[1] - 7, anchor, INK, font_size=11))
    return parts


def _head(colors: Colors) -> list[Markup]:
    text = colors.best_text()
    return [label(text, LEFT, 20, "start", BEST)] if text else []


def _time_axis(record: Record, per_s: float) -> PlotAxis:
    """Return the time axis of all plots of a sweep.

    It reaches a deadline that is not far off.
    """
    last_s = max(record.elapsed_s, record.deadline_at_s or 0.0) if _shows_deadline(record) else record.elapsed_s
    return PlotAxis(0.0, max(1.01 * last_s * per_s, 1e-3), LEFT, WIDTH - RIGHT)


def _shows_deadline(record: Record) -> bool:
    return record.deadline_at_s is not None and record.deadline_at_s <= FAR * record.elapsed_s


def _deadline(record: Record, area: PlotArea, *, at_top: bool = True) -> list[Markup]:
    """Draw the deadline unless it is far off.

    Named at the end away from good values.
    """
    if record.deadline_at_s is None or not _shows_deadline(record):
        return []
    at = record.deadline_at_s * _time_unit(record.elapsed_s)[1]
    y = area.up.end + 14 if at_top else area.up.start - 8
    return [area.vertical(at, INK, "2 3"), label("deadline", area.across(at) - 6, y, "end", INK)]


def _slots(slots: int | None, area: PlotArea) -> list[Markup]:
    if not slots:
        return []
    y, (left, right) = area.up(slots), (area.across.start, area.across.end)
    line = element("line", x1=left, x2=right, y1=y, y2=y, stroke=INK, stroke_dasharray="5 4")
    return [line, label(f"{slots} slots", left + 6, y - 6, "start", INK)]


def _layer(trial: TrialRecord, path: str, colors: Colors) -> Markup:
    return element("path", element("title", trial.id), d=path, fill=colors.of(trial), stroke=PAPER, stroke_width=0.5)


def _workers_at(worker_counts: tuple[WorkerCount, ...], times: list[float]) -> np.ndarray:
    begins = np.array([count.at_s for count in worker_counts])
    workers = np.array([0, *(count.workers for count in worker_counts)])
    found: np.ndarray = workers[np.searchsorted(begins, times, side="right")]
    return found


def _area_path(area: PlotArea, times: Sequence[float], low: np.ndarray, high: np.ndarray) -> str:
    """Return the `d` of the steps between `low` and `high`.

    Without spans of no workers.
    """
    parts = []
    has_workers = [*(high > low), False]
    begin = None
    for number, has in enumerate(has_workers):
        if has and begin is None:
            begin = number
        elif not has and begin is not None:
            span = slice(begin, min(number, len(times) - 1) + 1)
            parts.append(_closed(area, times[span], low[span], high[span]))
            begin = None
    return "".join(parts)


def _closed(area: PlotArea, times: Sequence[float], low: np.ndarray, high: np.ndarray) -> str:
    """Return the `d` of one area.

    Along the top in steps, and back along the bottom.
    """
    tops, bottoms = _steps(area, times, high), _steps(area, times, low)
    forth, back = ("L".join(f"{x:.1f} {y:.1f}" for x, y in each) for each in (tops, bottoms[::-1]))
    return f"M{forth}L{back}Z"


def _steps(area: PlotArea, times: Sequence[float], values: np.ndarray) -> list[tuple[float, float]]:
    """Return the corners of a staircase.

    Each level lasts until the next time.
    """
    corners: list[tuple[float, float]] = []
    for begin, end, value in zip(times, times[1:], values.tolist(), strict=False):
        y = area.up(value)
        if corners and corners[-1][1] == y:
            corners[-1] = area.across(end), y
        else:
            corners += [(area.across(begin), y), (area.across(end), y)]
    return corners or [(area.across(time), area.up(float(values[0]))) for time in times]


def _value_range(record: Record) -> tuple[float, float]:
    """Return the value range without outliers.

    The worst values of fresh models would flatten the plot.
    """
    values = np.array([p.value for trial in record.trials.values() for p in trial.points if p.value is not None])
    values = values[np.isfinite(values)] if len(values) else values
    if len(values) == 0:
        return 0.0, 1.0
    low, high = without_outliers(values, record.mode)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, high + margin


def _time_unit(elapsed_s: float) -> tuple[str, float]:
    """Return the unit of the time axis.

    And its length of one second.
    """
    if elapsed_s >= HOURS_FROM_S:
        return "hours", 1 / 3600
    return ("minutes", 1 / 60) if elapsed_s >= MINUTES_FROM_S else ("seconds", 1.0)


def _time_label(record: Record) -> str:
    return f"{_time_unit(record.elapsed_s)[0]} since the sweep began"
