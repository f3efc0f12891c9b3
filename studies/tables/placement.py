"""Measured step time of every placement of a table, beside what "auto" chooses: random tables, batches and links.

sudo python -m studies.tables.placement            # minutes; writes docs/experiments/table-placement.*
python -m studies.tables.placement --report        # only the page and the picture, from the numbers

Every rank has a network namespace of its own. A token bucket (tc tbf) limits its link in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from bench.machine import machine
from bench.tables.links import require_namespaces
from bench.tables.report import summarized
from bench.tables.setting import TableSetting
from bench.tables.world import run_world
from matplotlib.figure import Figure
from studies.reports.command import Found, run_study, study_parser

from forebay.training.tables.placement import LinkSpeed, TableDemand, costs_of

NAME = "table-placement"
WAYS = {"rows": "rows", "replicate": "replicate", "one owner": "table"}
"""Ways of the bench, and the placement that each one is."""
CLOSE = 1.1
_MOST_NUMBERS = {0: 16e6, 1000: 8e6, 100: 1.5e6}


def cases(seed: int, count: int) -> list[TableSetting]:
    """Return random cases: world size, rows, width, batch, lookups of a row, skew, and link in Mbit/s (0: no limit)."""
    rng = np.random.default_rng([seed])
    found: list[TableSetting] = []
    while len(found) < count:
        first = len(found) % len(WAYS)  # None of them always runs first.
        case = TableSetting(
            ways=(*tuple(WAYS)[first:], *tuple(WAYS)[:first]),
            workers=int(rng.choice([2, 3, 4])),
            rows=int(10 ** rng.uniform(2.5, 6.3)),
            dim=int(rng.choice([4, 16, 64])),
            batch=int(2 ** rng.uniform(7, 12.5)),
            columns=int(rng.choice([1, 4, 26])),
            power=float(rng.choice([0.6, 1.05, 1.4])),
            mbit=int(rng.choice([0, 0, 1000, 100])),
        )
        if case.rows * case.dim <= _MOST_NUMBERS[case.mbit]:
            dense_s = 8e-6 * 8 * case.rows * case.dim / (case.mbit or 4000)
            found.append(replace(case, steps=int(np.clip(2 / dense_s, 2, 20)), turns=3))
    return found


def study(seed: int, count: int) -> Found:
    """Measure all cases."""
    require_namespaces()
    found: dict[str, Any] = {"machine": machine(), "seed": seed, "cases": []}
    for case in cases(seed, count):
        found["cases"].append(measured(case))
        print(json.dumps(found["cases"][-1]), flush=True)
    return found


def measured(case: TableSetting) -> dict[str, Any]:
    """Return the setting of a case, with the seconds and bytes of a step of each placement."""
    ranks = run_world(case)
    figures = {WAYS[way]: summarized(ranks, way) for way in case.ways}
    seconds = {name: _quiet_seconds(ranks, way) for way, name in WAYS.items()}
    return {
        "setting": asdict(case),
        "unique": figures["rows"]["unique"],
        "seconds": seconds,
        "sent_bytes": {name: each["sent_bytes"] for name, each in figures.items()},
        "cpu_s": {name: each["cpu_s"] for name, each in figures.items()},
    }


def _quiet_seconds(ranks: Sequence[Mapping[str, Any]], way: str) -> float:
    """Mean of the faster half of the steps: other programs only make steps longer."""
    steps = np.sort(np.max([each[way]["seconds"] for each in ranks], axis=0))
    return float(steps[: max(len(steps) // 2, 1)].mean())


def chosen(case: Mapping[str, Any]) -> str:
    """Return the placement that "auto" chooses for a measured case."""
    return costs_of([demand_of(case)], link_of(case))[0][0].placement


def demand_of(case: Mapping[str, Any]) -> TableDemand:
    setting = case["setting"]
    return TableDemand(rows=setting["rows"], dim=setting["dim"], unique=case["unique"], world_size=setting["workers"])


def link_of(case: Mapping[str, Any]) -> LinkSpeed:
    """Return the link that a user would name: `Tables(link_mbit=...)`."""
    return LinkSpeed.of(case["setting"]["mbit"] or None)


def ratio(case: Mapping[str, Any]) -> float:
    """Return the measured time of the choice, as a multiple of the fastest placement's."""
    seconds = case["seconds"]
    return float(seconds[chosen(case)] / min(seconds.values()))


def picture(found: Found) -> Figure:
    """Times of all placements, as multiples of the fastest one. The choice has a ring."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots()
    for name, color in zip(WAYS.values(), ("#1f77b4", "#ff7f0e", "#2ca02c"), strict=True):
        times = [case["seconds"][name] / min(case["seconds"].values()) for case in found["cases"]]
        axes.plot(range(1, len(times) + 1), times, "o", color=color, label=name)
    axes.plot(
        range(1, len(found["cases"]) + 1),
        [ratio(case) for case in found["cases"]],
        "o",
        markersize=12,
        fillstyle="none",
        color="black",
        label="choice of auto",
    )
    axes.axhline(CLOSE, color="#aaaaaa", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("case")
    axes.set_ylabel("step time, fastest placement = 1")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def page(found: Found) -> str:
    """Markdown page about the picture."""
    ran_on, every = found["machine"], found["cases"]
    good = sum(ratio(case) <= CLOSE for case in every)
    lines = [
        "# The choice of placement, beside measured times",
        "",
        f"{len(every)} random cases: ranks, rows, width, batch, skew and speed of the link. Each one ran with every",
        "placement, in network namespaces of its own. A token bucket (`tc tbf`) limits links where a speed is given.",
        f"**The choice of `auto` is the fastest placement, or within 10 % of it, in {good} of {len(every)} cases.**",
        "Its time is at most " + f"{max(map(ratio, every)):.2f} times the fastest placement's.",
        "",
        "Times are of a whole step, means of the faster half of 6 to 60 steps, in 3 turns of all placements.",
        "`python -m studies.tables.placement` writes this page, as root.",
        f"Machine: {ran_on['cpu']}, {ran_on['cores']} cores; load average before the run {ran_on['load_before']:.1f}.",
        "",
        f"![step time of each placement]({NAME}.png)",
        "",
        "Times of placements are ms, and x is the time of the choice over the fastest placement's.",
        "",
        "| case | ranks | rows x dim | batch x ids | skew | Mbit/s | unique | rows | replicate | table | auto | x |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number, case in enumerate(every, 1):
        setting, seconds = case["setting"], case["seconds"]
        cells = [
            str(number),
            str(setting["workers"]),
            f"{setting['rows']:,} x {setting['dim']}",
            f"{setting['batch']:,} x {setting['columns']}",
            f"{setting['power']}",
            str(setting["mbit"] or "-"),
            f"{case['unique']:,.0f}",
            *(f"{seconds[name] * 1e3:.1f}" for name in WAYS.values()),
            chosen(case),
            f"{ratio(case):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    run_study(options, NAME, lambda: study(options.seed, options.cases), page=page, picture=picture)


if __name__ == "__main__":
    main()
