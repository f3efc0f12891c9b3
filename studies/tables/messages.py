"""Steps with several tables: a message for each lookup, gradients in one message, and lookups in one too.

sudo python -m studies.tables.messages            # minutes; writes docs/experiments/table-messages.*
python -m studies.tables.messages --report        # only the page and the picture, from the numbers

Every rank has a network namespace of its own, whose link counts bytes and packets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from bench.machine import machine
from bench.tables.links import require_namespaces
from bench.tables.setting import TableSetting
from bench.tables.ways import SEVERAL_TABLES
from bench.tables.world import run_world
from matplotlib.figure import Figure
from studies.reports.command import Found, run_study, study_parser

NAME = "table-messages"
APART, GRADIENTS, TOGETHER = SEVERAL_TABLES
WORLDS = ((2, 4), (2, 8), (4, 4), (4, 8))
"""Ranks and tables."""


def setting_of(ranks: int, tables: int, turn: int) -> TableSetting:
    """Return the setting of a world. In each `turn`, another way runs first."""
    first = turn % len(SEVERAL_TABLES)
    ways = (*SEVERAL_TABLES[first:], *SEVERAL_TABLES[:first])
    return TableSetting(ways=ways, workers=ranks, rows=100_000, columns=tables, batch=2048, steps=40)


def messages(way: str, tables: int) -> int:
    """Return the all-to-all messages of a step under gloo."""
    return {APART: 4 * tables, GRADIENTS: 3 * tables + 1, TOGETHER: 4}[way]


def study(turns: int) -> Found:
    """Measure all ways in each world, in turns."""
    require_namespaces()
    found: dict[str, Any] = {"machine": machine(), "turns": turns, "worlds": []}
    for ranks, tables in WORLDS:
        runs = [run_world(setting_of(ranks, tables, turn)) for turn in range(turns)]
        for run in runs:
            assert all(each[way]["loss"] == each[APART]["loss"] for each in run for way in SEVERAL_TABLES)
        figures = {way: _figures([[each[way] for each in run] for run in runs]) for way in SEVERAL_TABLES}
        found["worlds"].append({"ranks": ranks, "tables": tables, "ways": figures})
        print(json.dumps(found["worlds"][-1]), flush=True)
    return found


def _figures(runs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the figures of a way: of a rank and step. `runs` has each rank's figures, by turn."""
    return {
        "seconds": [_quiet(np.max([each["seconds"] for each in run], axis=0)) for run in runs],
        "cpu_s": [_quiet(np.mean([each["cpu_s"] for each in run], axis=0)) for run in runs],
        "sent_bytes": median(median(each["sent_bytes"]) for run in runs for each in run),
        "sent_packets": median(median(each["sent_packets"]) for run in runs for each in run),
    }


def _quiet(values: np.ndarray) -> float:
    """Mean of the lower half: other programs only make steps longer."""
    return float(np.sort(values)[: len(values) // 2].mean())


def ratios(world: Mapping[str, Any], way: str, name: str) -> list[float]:
    """Return a figure of `way` as a share of one message for each lookup, turn by turn."""
    pairs = zip(world["ways"][way][name], world["ways"][APART][name], strict=True)
    return [each / apart for each, apart in pairs]


def picture(found: Found) -> Figure:
    """Time of a step, as a share of that with a message for each lookup. Bars are medians of turns, dots are turns."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(found["worlds"]))
    for number, way in enumerate(SEVERAL_TABLES):
        shares = [ratios(world, way, "seconds") for world in found["worlds"]]
        at = places + 0.27 * (number - 1)
        axes.bar(at, [median(each) for each in shares], 0.25, label=way)
        for place, each in zip(at, shares, strict=True):
            axes.plot([place] * len(each), each, ".", color="black", markersize=4)
    axes.set_xticks(places, [f"{world['ranks']} ranks, {world['tables']} tables" for world in found["worlds"]])
    axes.set_ylabel("time of a step, share")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    return figure


def page(found: Found) -> str:
    """Markdown page about the picture."""
    ran_on, example = found["machine"], setting_of(2, 4, 0)
    lines = [
        "# Messages of several tables",
        "",
        f'Tables of {example.rows:,} x {example.dim} float32, placed as "rows". A global batch has {example.batch:,}',
        "rows with an id for each table. Ranks are processes with one thread, under gloo. Each has a network namespace",
        "of its own, and its link counts bytes and packets. No link is slowed down.",
        "",
        f"- *{APART}*: a message for each lookup, and one for its gradient",
        f"- *{GRADIENTS}*: one message for the gradients of all tables",
        f"- *{TOGETHER}*: lookups by `fb.tables.look_up` as well",
        "",
        "All three have the same losses, to the bit. They run one after the other in one world, in",
        f"{found['turns']} turns, each of which begins with another one. Times are means of the faster half of",
        f"{example.steps} steps. A share is the median of turns, with their range in brackets, and 1 is the first way.",
        "`python -m studies.tables.messages` writes this page, as root.",
        f"Machine: {ran_on['cpu']}, {ran_on['cores']} cores; load average before the run {ran_on['load_before']:.1f}.",
        "",
        f"![time of a step]({NAME}.png)",
        "",
        "| ranks | tables | way | messages a step | packets sent | kB sent | ms a step | share | CPU ms | share |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for world in found["worlds"]:
        for way in SEVERAL_TABLES:
            figures = world["ways"][way]
            cells = [
                str(world["ranks"]),
                str(world["tables"]),
                way,
                str(messages(way, world["tables"])),
                f"{figures['sent_packets']:,.0f}",
                f"{figures['sent_bytes'] / 1e3:,.0f}",
                f"{median(figures['seconds']) * 1e3:.2f}",
                _share(ratios(world, way, "seconds")),
                f"{median(figures['cpu_s']) * 1e3:.2f}",
                _share(ratios(world, way, "cpu_s")),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _share(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args(arguments)
    run_study(options, NAME, lambda: study(options.turns), page=page, picture=picture)


if __name__ == "__main__":
    main()
