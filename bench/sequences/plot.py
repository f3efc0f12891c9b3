"""Plot of the sequence bench: windows per second of every system, its memory and first batch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.sequences.peers import RATES, SeriesSet

_OURS, _OTHERS = "#1f5a96", "#9db8d6"
_COLORS = ("#1f5a96", "#5fa8d3", "#c8553d", "#8a6bb0", "#b58a2c", "#4b8f5c", "#777777", "#222222")


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Plot medians: bars of windows per second, points of memory and time by dataset."""
    measured = [result for result in found["results"] if "windows_per_s" in result]
    figure = Figure(figsize=(15, 5), layout="constrained")
    bars, memory, first = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    _bars(bars, [result for result in measured if result["set"] == RATES.name])
    loaders = [result for result in measured if not result["name"].startswith("limit")]
    _points(memory, loaders, "used_bytes", 1e-6, "memory of all processes beyond imports, MB")
    _points(first, loaders, "first_batch_s", 1, "time to the first batch in a new process, s")
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


def _points(panel: Axes, results: Sequence[Mapping[str, Any]], key: str, scale: float, label: str) -> None:
    """Medians of each system on each dataset, side by side."""
    sets = list(dict.fromkeys(result["set"] for result in results))
    names = list(dict.fromkeys(result["name"] for result in results))
    for number, name in enumerate(names):
        values = {each: [r[key] * scale for r in results if (r["name"], r["set"]) == (name, each)] for each in sets}
        shift = 0.6 * (number / max(len(names) - 1, 1) - 0.5)
        places = [place + shift for place, each in enumerate(sets) if values[each]]
        middles = [statistics.median(found) for found in values.values() if found]
        marker = "o" if name.startswith("Forebay") else "s"
        panel.plot(places, middles, marker, color=_COLORS[number % len(_COLORS)], label=name)
    labels = [f"{SeriesSet.parse(each).windows:,}\nx {SeriesSet.parse(each).columns}" for each in sets]
    panel.set_xticks(range(len(sets)), labels, fontsize=7)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter("")
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panel.set_xlabel("windows x columns")
    panel.set_title(label, fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)


def _short(rate: float) -> str:
    return f"{rate / 1e6:.1f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k" if rate >= 1e3 else f"{rate:.0f}"
