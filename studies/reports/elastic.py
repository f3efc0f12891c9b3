"""Report of elastic_experiments.py: plots and a document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reports.page import kept_reading

COLOURS = {"fixed": "#22313f", "walk": "#1f77b4", "leap": "#e3a72f", "two": "#d1495b", "double": "#2e8b57"}
Run = Mapping[str, Any]
BLOG = "https://www.uber.com/blog/horovod-ray/"


def write_report(found: Mapping[str, Any], out: Path) -> list[Path]:
    """Write elastic.md and one picture per driver into `out`. Returns the written paths."""
    good = [run for run in found["runs"] if "error" not in run]
    written = []
    for driver in found["options"]["drivers"]:
        of_driver = [run for run in good if run["driver"] == driver]
        if of_driver:
            path = out / f"elastic_{driver}.png"
            _figure(of_driver, driver).savefig(path, dpi=120)
            written.append(path)
    document = out / "elastic.md"
    kept = kept_reading(document)
    document.write_text(
        "\n".join([*_head(found), *_table(good), "", *_failed(found["runs"]), *_pictures(written), *kept])
    )
    return [*written, document]


def simulated_s(run: Run, rows: float) -> float:
    """Seconds until `rows` rows were trained if every worker had a core of its own, with resizes as long as measured.

    The speed of one worker is taken as the whole machine's speed in this run. All workers share the machine, so its
    speed hardly depends on their number.
    """
    pace = _rows_per_s(run)
    total, before = 0.0, 0.0
    for step in run["steps"]:
        upto = min(step["rows"], rows)
        total += max(upto - before, 0.0) / (pace * max(step["workers"], 1))
        before = max(before, upto)
    return total + sum(gap for gap, at in _gaps(run) if at <= rows)


def _rows_per_s(run: Run) -> float:
    training = run["steps"][-1]["at_s"] - sum(gap for gap, _ in _gaps(run))
    return float(run["steps"][-1]["rows"] / max(training, 1e-9))


def _gaps(run: Run) -> list[tuple[float, float]]:
    """(seconds without a step, rows trained before) for each resize."""
    times = [step["at_s"] for step in run["steps"]]
    gaps = []
    for resize in run["resizes"]:
        after = int(np.searchsorted(times, resize["at_s"]))
        if 0 < after < len(times):
            gaps.append((times[after] - times[after - 1], run["steps"][after - 1]["rows"]))
    return gaps


def _head(found: Mapping[str, Any]) -> list[str]:
    given = found["options"]
    pictures = given["data"] or "scikit-learn's 1,797 handwritten digits (80 % for training), made 16 x 16"
    text = f"""# Elastic training: accuracy when workers come and go

Written by `python studies/elastic_experiments.py`.
Data: {pictures}.
Training: a small ResNet, {given["epochs"]} epochs, global batch 64, AdamW, a commit every step, \
up to {given["max_workers"]} workers, {given["seeds"]} seeds.
The experiments repeat Uber's [Elastic Deep Learning with Horovod on Ray]({BLOG}), \
with epochs and periods scaled to one machine.

Accuracy is measured on held-out pictures after the last epoch, mean +- standard deviation over seeds.
Simulated time gives every worker its own core and adds each resize as measured.
Wall time is measured on this machine, whose workers share its cores.
"""
    return [*text.splitlines(), ""]


def _table(runs: Sequence[Run]) -> list[str]:
    lines = [
        "| driver | workers | accuracy | best epoch | resizes per run | median gap, s | simulated s | wall s |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for driver, name in dict.fromkeys((run["driver"], run["name"]) for run in runs):
        same = [run for run in runs if (run["driver"], run["name"]) == (driver, name)]
        gaps = [gap for run in same for gap, _ in _gaps(run)]
        cells = [
            driver,
            same[0]["title"],
            _spread([run["evaluations"][-1]["accuracy"] for run in same], "{:.4f}"),
            _spread([max(each["accuracy"] for each in run["evaluations"]) for run in same], "{:.4f}"),
            f"{mean(len(run['resizes']) for run in same):.1f}",
            f"{median(gaps):.2f}" if gaps else "-",
            _spread([simulated_s(run, run["steps"][-1]["rows"]) for run in same], "{:.1f}"),
            _spread([run["evaluations"][-1]["at_s"] for run in same], "{:.0f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _spread(values: Sequence[float], form: str) -> str:
    text = form.format(mean(values))
    return f"{text} +- {form.format(stdev(values))}" if len(values) > 1 else text


def _failed(runs: Iterable[Run]) -> list[str]:
    failed = [
        f"- {run['driver']} {run['title']} seed {run['seed']}: {run['error'].splitlines()[0]}"
        for run in runs
        if "error" in run
    ]
    return ["Runs that failed:", "", *failed, ""] if failed else []


def _pictures(written: Iterable[Path]) -> list[str]:
    return [line for path in written for line in (f"![{path.stem}]({path.name})", "")]


def _figure(runs: Sequence[Run], driver: str) -> Figure:
    figure = Figure(figsize=(11, 8), layout="constrained")
    by_epoch, workers, by_simulated, by_wall = figure.subplots(2, 2).ravel()
    figure.suptitle(f"driver={driver!r}: mean of all seeds, and each seed")
    _curves(by_epoch, runs, lambda _, each: each["epoch"])
    by_epoch.set(xlabel="epoch", ylabel="held-out accuracy")
    _curves(by_simulated, runs, lambda run, each: simulated_s(run, each["rows"]))
    by_simulated.set(xlabel="simulated time, s", ylabel="held-out accuracy")
    _curves(by_wall, runs, lambda _, each: each["at_s"])
    by_wall.set(xlabel="wall time, s", ylabel="held-out accuracy")
    for run in (run for run in runs if run["seed"] == 0):
        times, sizes = [step["at_s"] for step in run["steps"]], [step["workers"] for step in run["steps"]]
        workers.step(times, sizes, where="post", color=COLOURS[run["name"]], label=run["title"], lw=1.3)
    workers.set(xlabel="wall time, s", ylabel="workers (seed 0)", ylim=(0, None))
    by_epoch.legend(fontsize=8, loc="lower right")
    for axes in (by_epoch, workers, by_simulated, by_wall):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _curves(axes: Axes, runs: Sequence[Run], place: Callable[[Run, Mapping[str, float]], float]) -> None:
    for name in dict.fromkeys(run["name"] for run in runs):
        same = [run for run in runs if run["name"] == name]
        xs = np.array([[place(run, each) for each in run["evaluations"]] for run in same])
        ys = np.array([[each["accuracy"] for each in run["evaluations"]] for run in same])
        for x, y in zip(xs, ys, strict=True):
            axes.plot(x, y, color=COLOURS[name], alpha=0.25, lw=0.8)
        axes.plot(xs.mean(0), ys.mean(0), color=COLOURS[name], lw=1.8, label=same[0]["title"])
    low = min(each["accuracy"] for run in runs for each in run["evaluations"][1:] or run["evaluations"])
    axes.set_ylim(max(low - 0.05, 0), 1.0)
