"""Share of a step that unique ids and their exchange take, and what an exchange beside the step before would save.

sudo python -m studies.tables.prefetch            # minutes; writes docs/experiments/table-prefetch.*
python -m studies.tables.prefetch --report        # only the page and the picture, from the numbers

The model comes from `jobs/train_dlrm.py`. Every rank has a network namespace of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from bench.machine import machine
from bench.tables.links import require_namespaces
from bench.tables.world import run_world
from matplotlib.figure import Figure
from studies.reports.command import Found, run_study, study_parser
from studies.tables.ahead import AHEAD_WAYS, INLINE, PHASES, AheadSetting

NAME = "table-prefetch"
FASTER = AHEAD_WAYS[1:]


def settings_of(steps: int) -> list[AheadSetting]:
    """Return the worlds: without a limit of links, then with one, then with half of the bytes and small batches."""
    slow = {"mbit": 100, "delay_ms": 1.0}
    cases: list[dict[str, Any]] = [
        {"workers": 2},
        {"workers": 4},
        {"workers": 2, **slow},
        {"workers": 4, **slow},
        {"workers": 2, **slow, "wire": "bfloat16"},
        {"workers": 2, **slow, "batch": 1024},
    ]
    return [AheadSetting(ways=AHEAD_WAYS, rows=1 << 19, steps=steps, **case) for case in cases]


def study(steps: int) -> Found:
    """Measure all worlds."""
    require_namespaces()
    found: dict[str, Any] = {"machine": machine(), "steps": steps, "worlds": []}
    for setting in settings_of(steps):
        ranks = run_world(setting, "studies.tables.ahead")
        assert all(each[way]["loss"] == each[INLINE]["loss"] for each in ranks for way in AHEAD_WAYS)
        case = {name: getattr(setting, name) for name in ("workers", "batch", "mbit", "delay_ms", "wire")}
        unique = float(np.mean([each["unique"] for each in ranks]))
        ways = {way: figures([each[way] for each in ranks]) for way in AHEAD_WAYS}
        found["worlds"].append({**case, "unique": unique, "ways": ways})
        print(json.dumps(found["worlds"][-1]), flush=True)
    return found


def figures(ranks: Sequence[Found]) -> dict[str, list[float]]:
    """Return the figures of each step: seconds of the slowest rank, all others of the mean rank."""
    mean = {name: np.mean([each[name] for each in ranks], axis=0).tolist() for name in ranks[0]}
    return {**mean, "seconds": np.max([each["seconds"] for each in ranks], axis=0).tolist()}


def quiet(values: Sequence[float]) -> float:
    """Return the mean of the lower half: other programs only make steps longer."""
    return float(np.sort(values)[: len(values) // 2].mean())


def share_of_ids(world: Found) -> float:
    """Return the share of a step that its unique ids, their numbers and their exchange take."""
    inline = world["ways"][INLINE]
    return sum(quiet(inline[f"{phase} seconds"]) for phase in PHASES[:3]) / quiet(inline["seconds"])


def ratio(world: Found, way: str) -> float:
    """Return the time of a step in a way, as a share of that with all messages in the step."""
    return quiet(world["ways"][way]["seconds"]) / quiet(world["ways"][INLINE]["seconds"])


def name_of(world: Found) -> str:
    link = f"{world['mbit']} Mbit/s, {world['delay_ms']:.0f} ms" if world["mbit"] else "no limit"
    return f"{world['workers']} ranks, batch {world['batch']:,}, {world['wire']}, {link}"


def picture(found: Found) -> Figure:
    """Time of a step, as a share of that with all messages in the step."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(found["worlds"]))
    for number, way in enumerate(FASTER):
        axes.barh(places + 0.35 * number, [ratio(world, way) for world in found["worlds"]], 0.33, label=way)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(places + 0.17, [name_of(world) for world in found["worlds"]])
    axes.set_xlabel("time of a step, share")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    return figure


def page(found: Found) -> str:
    """Markdown page about the picture."""
    ran_on = found["machine"]
    lines = [
        "# Ids of the next batch, exchanged beside the step",
        "",
        "The model of `jobs/train_dlrm.py` with a table of 524,288 x 16, 26 ids a row, placed as rows, under gloo.",
        "Ids are exchanged *in the step*, *beside the step* before by a thread with a process group of its own, or",
        "*before the run*, which no prefetch can beat. Losses of all three are equal to the bit.",
        "",
        f"They take each of {found['steps']} steps in turn. Times are means of the faster half.",
        "A token bucket limits links. Ranks sleep before each message for the delay.",
        "`python -m studies.tables.prefetch` writes this page, as root.",
        f"Machine: {ran_on['cpu']}, {ran_on['cores']} cores; load average before the run {ran_on['load_before']:.1f}.",
        "",
        f"![time of a step]({NAME}.png)",
        "",
        "The share of ids is the time of unique ids, their numbers and their exchange, over the time of a step.",
        "",
        "| world | ms a step | CPU ms | kB sent | kB of ids | share of ids | beside the step | before the run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for world in found["worlds"]:
        inline = world["ways"][INLINE]
        cells = [
            name_of(world),
            f"{quiet(inline['seconds']) * 1e3:.0f}",
            f"{quiet(inline['cpu_s']) * 1e3:.0f}",
            f"{np.median(inline['sent_bytes']) / 1e3:,.0f}",
            f"{np.median(inline['ids sent_bytes']) / 1e3:,.0f}",
            f"{share_of_ids(world):.3f}",
            *(f"{ratio(world, way):.2f}" for way in FASTER),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--steps", type=int, default=18)
    options = parser.parse_args(arguments)
    run_study(options, NAME, lambda: study(options.steps), page=page, picture=picture)


if __name__ == "__main__":
    main()
