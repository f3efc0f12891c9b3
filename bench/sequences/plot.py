"""Plot of the sequence bench: windows per second of every system, and what grows with the number of windows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.sequences.peers import RATES, SeriesSet

_OURS, _OTHERS = "#1f5a96", "#9db8d6"
_LINES = ("#1f5a96", "#c8553d", "#4b8f5c", "#8a6bb0", "#b58a2c", "#777777")


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Plot medians: bars of windows per second, lines of memory and time over the number of windows."""
    measured = [result for result in found["results"] if "windows_per_s" in result]
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    bars, memory, first = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    _bars(bars, [result for result in measured if result["set"] == RATES.name])
    loaders = [result for result in measured if not result["name"].startswith("limit")]
    _lines(memory, loaders, "used_bytes", 1e-6, "memory of all processes beyond imports, MB")
    _lines(first, loaders, "first_batch_s", 1, "time to the first batch in a new process, s")
    handles, labels = memory.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def _bars(panel: Axes, results: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(result["name"] for result in results))
    for place, name in enumerate(names):
        rates = [result["windows_per_s"] for result in results if result["name"] == name]
        middle = statistics.median(rates)
        spread = [[middle - min(rates)], [max(rates) - middle]]
        color = _OURS if name.startswith("Forebay") else _OTHERS
        panel.barh(place, middle, 0.7, xerr=spread, color=color, ecolor="#444444")
        panel.annotate(_short(middle), (max(rates), place), (4, 0), textcoords="offset points", va="center", size=8)
    panel.set_xscale("log")
    panel.set_xlim(right=panel.get_xlim()[1] * 3)
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlabel(f"windows per second, {RATES.windows:,} windows of {RATES.columns} columns")
    panel.spines[["top", "right"]].set_visible(False)


def _lines(panel: Axes, results: Sequence[Mapping[str, Any]], key: str, scale: float, label: str) -> None:
    """One line per system, over the number of windows. Sets of one size are one point: the median over all."""
    for number, name in enumerate(dict.fromkeys(result["name"] for result in results)):
        by_windows: dict[int, list[float]] = {}
        for result in results:
            if result["name"] == name:
                by_windows.setdefault(SeriesSet.parse(result["set"]).windows, []).append(result[key] * scale)
        sizes = sorted(by_windows)
        style = "-" if name.startswith("Forebay") else "--"
        color = _LINES[number % len(_LINES)]
        panel.plot(
            sizes, [statistics.median(by_windows[size]) for size in sizes], style, color=color, marker="o", label=name
        )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("windows")
    panel.set_title(label, fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)


def _short(rate: float) -> str:
    return f"{rate / 1e6:.1f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k" if rate >= 1e3 else f"{rate:.0f}"
