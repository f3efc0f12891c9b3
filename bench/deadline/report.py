"""Report of the deadline bench: how often, and by how much, `DeadlineScheduler` ends better than ASHA."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

TIE = 5e-4
"""Less than a twentieth of a point of accuracy (or of a nat) is a draw."""
OURS = "DeadlineScheduler"
BEST = "the best of these, chosen afterwards"
UNITS = ("accuracy", "nats of log loss")
"""Units of synthetic and of recorded curves."""
Row = Mapping[str, Any]


def gains(rows: Sequence[Row], other: str, ours: str = OURS) -> list[float]:
    """Gain of `ours` over `other`, sweep by sweep."""
    return [row["ended"][ours] - _reference(row, other) for row in rows if _has(row, other, ours)]


def win_rate(found: Sequence[float]) -> float:
    """Share of wins among the decided sweeps."""
    wins, losses = sum(g > TIE for g in found), sum(g < -TIE for g in found)
    return wins / max(wins + losses, 1)


def strongest(rows: Sequence[Row]) -> str:
    """The ASHA with the best average end. Variants that did not fit into some sweep are left out."""
    names = [name for name in others(rows) if all(row["ended"].get(name) is not None for row in rows)]
    return max(names, key=lambda name: statistics.fmean(row["ended"][name] for row in rows))


def others(rows: Sequence[Row]) -> list[str]:
    """The other schedulers, in run order."""
    return [name for name in rows[0]["ended"] if name.startswith("ASHA")]


def table(rows: Sequence[Row], ours: str = OURS) -> str:
    """Wins, draws and losses against every ASHA, by length of the deadline."""
    lines = ["| deadline | against | sweeps | won | drawn | lost | won of those decided | mean gain | median gain |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for length, part in _parts(rows):
        for other in (*others(rows), BEST):
            found = gains(part, other, ours)
            if found:
                lines.append(f"| {length} | {other} | {len(found)} | {_record(found)} |")
    return "\n".join(lines)


def _record(found: Sequence[float]) -> str:
    wins, losses = sum(g > TIE for g in found), sum(g < -TIE for g in found)
    shares = [f"{count / len(found):.0%}" for count in (wins, len(found) - wins - losses, losses)]
    middle = f"{statistics.fmean(found):+.4f} | {statistics.median(found):+.4f}"
    return f"{' | '.join(shares)} | {win_rate(found):.0%} | {middle}"


def families(rows: Sequence[Row]) -> str:
    """Against the strongest ASHA, by the kind of learning curve."""
    other = strongest(rows)
    lines = [f"| curves | sweeps | won against {other} | mean gain | median gain |", "|---|---|---|---|---|"]
    for family in dict.fromkeys(row["family"] for row in rows):
        found = gains([row for row in rows if row["family"] == family], other)
        lines.append(
            f"| {family} | {len(found)} | {win_rate(found):.0%} | {statistics.fmean(found):+.4f} | "
            f"{statistics.median(found):+.4f} |"
        )
    return "\n".join(lines)


def policies(rows: Sequence[Row]) -> str:
    """Average distance to the best possible end, by policy and for every ASHA."""
    names = [name for name in rows[0]["ended"] if all(row["ended"].get(name) is not None for row in rows)]
    lines = ["| | short deadlines | long deadlines |", "|---|---|---|"]
    for name in names:
        missing = [
            statistics.fmean(row["possible"] - row["ended"][name] for row in part) if part else float("nan")
            for part in ([row for row in rows if row["length"] == length] for length in ("short", "long"))
        ]
        lines.append(f"| {name} | {missing[0]:.4f} | {missing[1]:.4f} |")
    return "\n".join(lines)


def plot(sources: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Gain over the strongest ASHA, all sweeps in order, one panel per source."""
    figure = Figure(figsize=(5.5 * len(sources), 4), layout="constrained")
    panels = figure.subplots(1, len(sources), squeeze=False)[0]
    for panel, (title, rows) in zip(panels, sources.items(), strict=True):
        _panel(panel, title, rows)
    figure.savefig(path, dpi=130)


def _panel(panel: Axes, title: str, rows: Sequence[Row]) -> None:
    other = strongest(rows)
    for length, color in (("short", "#1f5a96"), ("long", "#d98b2b")):
        found = sorted(gains([row for row in rows if row["length"] == length], other))
        if found:
            places = [(number + 0.5) / len(found) for number in range(len(found))]
            panel.plot(places, found, color=color, label=f"{length} deadlines, {len(found)} sweeps")
    panel.axhline(0, color="#888888", linewidth=0.8)
    panel.set_title(f"{title}, against\n{other}", size=10)
    panel.set_xlabel("share of the sweeps, worst to best")
    panel.set_ylabel(f"gain of DeadlineScheduler, {UNITS[rows[0]['family'] == 'digits']}")
    panel.xaxis.set_major_formatter(PercentFormatter(1))
    panel.set_xlim(0, 1)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e4e8ec", linewidth=0.6)
    panel.legend(frameon=False)


def _parts(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    by_length: list[tuple[str, Callable[[Row], bool]]] = [
        ("short", lambda row: row["length"] == "short"),
        ("long", lambda row: row["length"] == "long"),
        ("all", lambda row: True),  # noqa: ARG005
    ]
    return [(name, [row for row in rows if takes(row)]) for name, takes in by_length]


def _reference(row: Row, other: str) -> float:
    if other != BEST:
        return float(row["ended"][other])
    return max(value for name, value in row["ended"].items() if name.startswith("ASHA") and value is not None)


def _has(row: Row, *names: str) -> bool:
    return all(name == BEST or row["ended"].get(name) is not None for name in names)
