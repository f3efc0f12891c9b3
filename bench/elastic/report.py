"""Document of the elastic bench: every event beside its target, for every system, and the phases of slow changes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.elastic.director import LIMIT_S
from bench.turns import markdown_table

OURS = ("Forebay, Ray Train", "Forebay, Horovod")
SHORTEST_S = 0.05
STOCK = ("Ray Train", "Elastic Horovod")


@dataclass(frozen=True)
class Row:
    """One row of the table. `measure` names a list of `Measured`. `targets` hold for `OURS`, in `unit`."""

    title: str
    measure: str
    unit: str
    targets: tuple[float | None, float | None]
    scale: float = 1.0


ROWS = (
    Row("grow 1 -> 2", "grow", "s", (2.5, 0.5)),
    Row("shrink 2 -> 1 (Ray Train: a drained and removed node)", "shrink", "s", (1.5, 0.3)),
    Row("SIGKILL a worker", "kill a worker", "s", (5.0, 0.3)),
    Row("its replacement joins", "kill a worker, back", "s", (None, None)),
    Row("SIGKILL a node", "kill a node", "s", (8.0, 3.0)),
    Row("steps redone, planned", "redone, planned", "steps", (0, 0)),
    Row("steps redone, SIGKILL", "redone, killed", "steps", (1, 1)),
    Row("commit, 4 MB", "commit", "ms", (10, 10), 1000.0),
    Row("commit, 400 MB", "commit 400 MB", "ms", (None, None), 1000.0),
)

_INTRODUCTION = """# What a change of membership costs

All figures below come from one run of `make bench-elastic`.
Systems run one after the other, each in a process and a Ray of its own, in {repeats} rounds.
Figures are medians, with the range in brackets, and n if fewer than {repeats} were measured.

A *gap* is the time from the last step before a change to the first step after it, as rank 0 measures it.
It includes the step itself ({step_s:g} s).
Every system trains one linear layer of 1000 x 1000 (4 MB) with SGD and commits at every step, with gloo over loopback.

"Ray Train" is `TorchTrainer` with `ScalingConfig(num_workers=(1, 2))` and `ray.train.report` with a checkpoint at every
step.
"Elastic Horovod" is `ElasticRayExecutor` with the shims that it needs on Ray 2.60.
Both have their defaults. Exceptions are in `bench/elastic/systems/`, as are the requests to each system.
Forebay's drivers receive `forebay scale`.
Stock Ray Train has no such command: a new node makes it grow, and the removal of a drained node (5 s notice) makes it
shrink.
In runs that add or remove nodes, Ray checks their health every 0.3 s and gives up after six times, for every system.
Ray's own limit is 15 s.
A request that brings no change within {limit_s:.0f} s is reported as such, and later requests are skipped.

Machine: {cpu}, {cores} cores, {memory_gb:.0f} GB, {system}; load average before the run {load_before:.1f}.
The run took {minutes:.0f} minutes.

![gaps](elastic.png)
"""


def report(found: Mapping[str, Any]) -> str:
    """Text of elastic.md from the contents of elastic.json."""
    machine, options = found["machine"], found["options"]
    facts = machine | options | {"memory_gb": machine["memory_bytes"] / 2**30, "minutes": found["took_s"] / 60}
    facts["limit_s"] = LIMIT_S
    parts = [
        _INTRODUCTION.format(**facts),
        "## Figures",
        table(found["systems"], options["repeats"]),
        *_timelines(found["systems"]),
    ]
    failures = [f"- {name}, {run}" for name, answer in found["systems"].items() for run in answer["errors"]]
    if failures:
        parts += ["## Runs that failed", "\n".join(failures)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def table(systems: Mapping[str, Mapping[str, Any]], repeats: int) -> str:
    """Table with events as rows and systems as columns. Missed targets and figures with too few repeats are marked."""
    known = [name for name in (*STOCK, *OURS) if name in systems]
    head = ("event", *(f"{name} (target)" if name in OURS else name for name in known))
    rows = [(f"{row.title}, {row.unit}", *(_cell(row, name, systems[name], repeats) for name in known)) for row in ROWS]
    return markdown_table([head, *rows])


def target_of(row: Row, name: str) -> float | None:
    """Target of a system in the row's unit. None if it has none."""
    return row.targets[OURS.index(name)] if name in OURS else None


def values_of(row: Row, answer: Mapping[str, Any]) -> list[float]:
    """Measured values in the row's unit."""
    return [value * row.scale for value in answer["measured"].get(row.measure, [])]


def is_missed(row: Row, name: str, answer: Mapping[str, Any]) -> bool:
    """Whether the median misses its target or no value came at all."""
    target, values = target_of(row, name), values_of(row, answer)
    if target is None:
        return False
    return statistics.median(values) > target if values else bool(answer["missing"].get(row.measure))


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Plot gaps by event and system on a logarithmic scale: medians with ranges, and targets as ticks."""
    rows = [row for row in ROWS if row.unit == "s"]
    systems = [name for name in (*STOCK, *OURS) if name in found["systems"]]
    figure = Figure(figsize=(9, 1.2 + 0.28 * len(rows) * max(len(systems), 1)), layout="constrained")
    panel = figure.subplots()
    height = 0.8 / max(len(systems), 1)
    for number, name in enumerate(systems):
        for place, row in enumerate(rows):
            values = values_of(row, found["systems"][name])
            if not values:
                continue
            middle, y = statistics.median(values), place - 0.4 + (number + 0.5) * height
            spread = [[middle - min(values)], [max(values) - middle]]
            panel.barh(y, middle, height * 0.9, color=f"C{number}", xerr=spread, ecolor="#444444")
            panel.annotate(f"{middle:.2g} s", (max(values), y), (4, 0), textcoords="offset points", va="center", size=7)
            if (target := target_of(row, name)) is not None:
                panel.plot([target] * 2, [y - height / 2, y + height / 2], color="black", linewidth=2)
    panel.set_xscale("log")
    panel.set_xlim(left=SHORTEST_S)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_yticks(range(len(rows)), [row.title.replace(" (", "\n(") for row in rows])
    panel.invert_yaxis()
    panel.set_xlabel("seconds without a step, logarithmic; black: target")
    panel.spines[["top", "right"]].set_visible(False)
    colors = [Patch(color=f"C{number}", label=name) for number, name in enumerate(systems)]
    figure.legend(handles=colors, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)


def _cell(row: Row, name: str, answer: Mapping[str, Any], repeats: int) -> str:
    values, target = values_of(row, answer), target_of(row, name)
    missing = ", ".join(dict.fromkeys(answer["missing"].get(row.measure, [])))
    if not values and not missing:
        return "-"
    few = f"n={len(values)}" if 0 < len(values) < repeats else ""
    text = ", ".join(filter(None, [_spread(values) if values else "", few, missing]))
    if target is None:
        return text
    return f"{text} (<= {target:g}{', **missed**' if is_missed(row, name, answer) else ''})"


def _timelines(systems: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Phases of every event that missed its target, from the run nearest to the median."""
    parts = []
    for name in OURS:
        answer = systems.get(name)
        for row in ROWS if answer else ():
            phases = answer["phases"].get(row.measure, [])
            if not is_missed(row, name, answer) or not phases:
                continue
            middle = statistics.median(values_of(row, answer))
            nearest = min(phases, key=lambda found: abs(found[-1][0] - middle))
            parts.append(f"### {name}, {row.title}: phases")
            parts.append("Seconds after the last step before the change.")
            parts.append(markdown_table([("s", "what"), *((f"{seconds:+.2f}", what) for seconds, what in nearest)]))
    return ["## Missed targets", *parts] if parts else []


def _spread(values: Sequence[float]) -> str:
    low, high = _number(min(values)), _number(max(values))
    return _number(statistics.median(values)) + (f" [{low} to {high}]" if low != high else "")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == round(value) else f"{value:.2g}"
