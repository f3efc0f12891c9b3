"""Plot of the bench: rows per second of every system, first and later epochs, on a logarithmic scale."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLORS = {"first": "#9db8d6", "later": "#1f5a96"}
_LABELS = {"first": "first epoch (cold)", "later": "later epoch (cached, where there is a cache)"}


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Plot medians as bars and ranges as whiskers, with one panel per dataset."""
    measured = [result for result in found["results"] if "phases" in result]
    kinds = list(dict.fromkeys(result["kind"] for result in measured))
    names = list(dict.fromkeys(result["name"] for result in measured))
    figure = Figure(figsize=(6 * max(len(kinds), 1) + 2, 0.55 * len(names) + 1.6), layout="constrained")
    panels = figure.subplots(1, max(len(kinds), 1), sharey=True, squeeze=False)[0]
    for kind, panel in zip(kinds, panels, strict=False):
        _panel(panel, [result for result in measured if result["kind"] == kind], names)
        panel.set_title(f"{kind}, {found['options']['rows']:,} rows")
    if kinds:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)


def _panel(panel: Axes, results: list[Mapping[str, Any]], names: list[str]) -> None:
    for shift, phase in ((-0.2, "first"), (0.2, "later")):
        rates = {
            name: [r["phases"][phase]["rows_per_s"] for r in results if r["name"] == name and phase in r["phases"]]
            for name in names
        }
        known = [name for name in names if rates[name]]
        places = [names.index(name) + shift for name in known]
        middles = [statistics.median(rates[name]) for name in known]
        below = [middle - min(rates[name]) for name, middle in zip(known, middles, strict=True)]
        above = [max(rates[name]) - middle for name, middle in zip(known, middles, strict=True)]
        panel.barh(
            places,
            middles,
            height=0.38,
            xerr=[below, above],
            color=_COLORS[phase],
            label=_LABELS[phase],
            ecolor="#444444",
        )
        for place, middle, over in zip(places, middles, above, strict=True):
            panel.annotate(
                _short(middle), (middle + over, place), (4, 0), textcoords="offset points", va="center", size=8
            )
    panel.set_xscale("log")
    panel.set_xlim(right=panel.get_xlim()[1] * 3)
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.set_xlabel("rows per second, logarithmic")
    panel.spines[["top", "right"]].set_visible(False)


def _short(rate: float) -> str:
    return f"{rate / 1e6:.1f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k" if rate >= 1e3 else f"{rate:.0f}"
