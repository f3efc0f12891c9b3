"""Report of sweep_study.py: a plot and a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reports.page import kept_reading

COLOURS = {"random": "#8d99ae", "asha": "#1f77b4", "pbt": "#d1495b"}
Swept = Mapping[str, Any]


def best_test(swept: Swept, budget: int) -> float:
    """Test AUC of the model chosen after `budget` epochs: the one with the best AUC on the other half."""
    return _so_far(swept, budget)[-1]


def write_report(found: Mapping[str, Any], out: Path) -> list[Path]:
    """Write sweeps.md and sweeps.png into `out`. Returns the written paths."""
    there = {swept["method"] for swept in found["sweeps"]}
    found = {**found, "titles": {name: title for name, title in found["titles"].items() if name in there}}
    picture, document = out / "sweeps.png", out / "sweeps.md"
    _figure(found).savefig(picture, dpi=120)
    kept = kept_reading(document)
    document.write_text(
        "\n".join([*_head(found), *_table(found), *_by_seed(found), "![sweeps](sweeps.png)", "", *kept])
    )
    return [picture, document]


def _so_far(swept: Swept, budget: int) -> list[float]:
    """Test AUC of the model that would be chosen after each epoch of any trial."""
    best, test, curve = -1.0, 0.5, []
    for chosen, tested in swept["epochs"][:budget]:
        if chosen is not None and chosen > best:
            best, test = chosen, tested
        curve.append(test)
    # A method that stops early keeps its last value.
    return curve + [test] * (budget - len(curve))


def _head(found: Mapping[str, Any]) -> list[str]:
    ranges = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in found["ranges"].items())
    rows, budget, slots, epochs = found["rows"], found["budget"], found["slots"], found["epochs"]
    text = f"""# Sweeps: random search, ASHA and population-based training on one budget

`python studies/sweep_study.py` writes this page.
The model is a small click model: one hidden layer over 13 floats and 12 embedded ids, SGD with momentum.
The data are a synthetic click log of {rows:,} rows, half of them for training.
No model can exceed an AUC of {found["best_auc"]:.4f}.
The search space is {ranges}; the first two are logarithmic.

The budget is {budget} epochs over all trials of a sweep.
Wall time differs with the number of trial starts.
All methods run through `fb.Sweep` on the same {slots} slots (logical ones, which share the cores of one machine).
They start from the same draws of a seed and train at most {epochs} epochs per trial.

- Random search spends the budget on full trials.
- ASHA (Tune's `ASHAScheduler`, two epochs of grace, reduction 3) spends it on more trials, most of which end early.
- PBT (Tune's `PopulationBasedTraining`, every two epochs) has as many trials as random search.
  The worst continue from checkpoints of the best, with changed values.

Each epoch of each trial counts; epochs beyond the budget are ignored.
Half of the held-out rows are for selection: schedulers, and the choice of the model, use nothing else.
The table shows the AUC of that model on the other half, mean +- standard deviation over seeds.
"""
    return [*text.splitlines(), ""]


def _table(found: Mapping[str, Any]) -> list[str]:
    lines = [
        "| method | test AUC | gain over random search | better on | trials | branches | epochs | wall s |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for method, title in found["titles"].items():
        mine = [swept for swept in found["sweeps"] if swept["method"] == method]
        gains = _gains(found, method)
        cells = [
            title,
            _spread([best_test(swept, found["budget"]) for swept in mine], "{:.4f}"),
            _spread(gains, "{:+.4f}") if method != "random" and gains else "-",
            f"{sum(gain > 0 for gain in gains)} of {len(gains)} seeds" if method != "random" and gains else "-",
            *(f"{mean(swept[fact] for swept in mine):.0f}" for fact in ("trials", "branches")),
            f"{mean(len(swept['epochs']) for swept in mine):.0f}",
            f"{mean(swept['seconds'] for swept in mine):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _gains(found: Mapping[str, Any], method: str) -> list[float]:
    finals = {(swept["method"], swept["seed"]): best_test(swept, found["budget"]) for swept in found["sweeps"]}
    seeds = [seed for name, seed in finals if name == method and ("random", seed) in finals]
    return [finals[method, seed] - finals["random", seed] for seed in seeds]


def _by_seed(found: Mapping[str, Any]) -> list[str]:
    seeds = sorted({swept["seed"] for swept in found["sweeps"]})
    lines = ["| test AUC | " + " | ".join(f"seed {seed}" for seed in seeds) + " |", "|---|" + "---:|" * len(seeds)]
    for method, title in found["titles"].items():
        values = {swept["seed"]: swept for swept in found["sweeps"] if swept["method"] == method}
        cells = [f"{best_test(values[seed], found['budget']):.4f}" if seed in values else "-" for seed in seeds]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return [*lines, ""]


def _spread(values: Sequence[float], form: str) -> str:
    text = form.format(mean(values))
    return f"{text} +- {form.format(stdev(values)).lstrip('+')}" if len(values) > 1 else text


def _figure(found: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    curves, finals = figure.subplots(1, 2, width_ratios=[2, 1])
    _draw_curves(curves, found)
    _draw_finals(finals, found)
    for axes in (curves, finals):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_curves(axes: Axes, found: Mapping[str, Any]) -> None:
    epochs = np.arange(1, found["budget"] + 1)
    for method, title in found["titles"].items():
        ys = np.array([_so_far(swept, found["budget"]) for swept in found["sweeps"] if swept["method"] == method])
        for y in ys:
            axes.plot(epochs, y, color=COLOURS[method], alpha=0.35, lw=1.0)
        axes.plot(epochs, ys.mean(0), color=COLOURS[method], lw=2.0, label=title)
    axes.set(xlabel="epochs trained, over all trials", ylabel="test AUC of the model chosen so far", ylim=(0.6, None))
    axes.legend(fontsize=8, loc="lower right", title="thick: mean of all seeds, thin: each", title_fontsize=8)


def _draw_finals(axes: Axes, found: Mapping[str, Any]) -> None:
    by_seed: dict[int, dict[str, float]] = {}
    for swept in found["sweeps"]:
        by_seed.setdefault(swept["seed"], {})[swept["method"]] = best_test(swept, found["budget"])
    names = list(found["titles"])
    for finals in by_seed.values():
        axes.plot([finals.get(name, np.nan) for name in names], color="#bbbbbb", lw=0.8, zorder=1)
    for place, name in enumerate(names):
        values = [finals[name] for finals in by_seed.values() if name in finals]
        axes.scatter([place] * len(values), values, color=COLOURS[name], zorder=2)
        axes.hlines(mean(values), place - 0.25, place + 0.25, color=COLOURS[name], lw=2.0)
    axes.set_xticks(range(len(names)), list(found["titles"].values()))
    axes.set(ylabel=f"test AUC after {found['budget']} epochs", xlim=(-0.5, len(names) - 0.5))
