"""Time of a step on links of 100 Mbit/s: dense gradients, a parameter server, and rows on their owners.

sudo python -m studies.embedding_links            # minutes; writes docs/experiments/embedding-links.*
python -m studies.embedding_links --report        # only the page and the picture, from the numbers

Every process has a network namespace of its own. A token bucket (tc tbf) limits its link in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.machine import machine
from bench.tables.links import require_namespaces
from bench.tables.report import summarized
from bench.tables.setting import TableSetting
from bench.tables.ways import SERVER, ranks_of
from bench.tables.world import run_world
from matplotlib.figure import Figure
from studies.reports.command import Found, run_study, study_parser

NAME = "embedding-links"
WORKERS, MBIT = 4, 100
TITLES = {
    "dense": "dense gradients, DDP",
    SERVER: "parameter server, a row for each lookup",
    "one owner": "one owner, unique rows",
    "rows": "fb.Table, rows on their owners",
    "bfloat16": "the same, bfloat16 on the wire",
}


def study(rows: int) -> Found:
    """Measure each way in a world of its own, on slow links and on the machine's own."""
    require_namespaces()
    found: dict[str, Any] = {"machine": machine(), "rows": rows, "ways": {}}
    for way in TITLES:
        found["ways"][way] = {}
        for mbit in (MBIT, 0):
            steps = {"steps": 5, "dense_steps": 2}
            setting = TableSetting(ways=(way,), workers=WORKERS, rows=rows, mbit=mbit, **steps)
            ranks = run_world(setting)
            busiest = max(sorted(each[way]["sent_bytes"])[len(each[way]["sent_bytes"]) // 2] for each in ranks)
            figures = {**summarized(ranks, way), "busiest_bytes": busiest, "ranks": ranks_of(setting, way)}
            found["ways"][way]["slow" if mbit else "free"] = figures
            print(f"{way}, {mbit or 'no'} Mbit/s: {figures['seconds']:.3f} s a step", flush=True)
    return found


def picture(found: Found) -> Figure:
    """Seconds of a step and bytes of the busiest process, of each way."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    seconds, sent = figure.subplots(1, 2, sharey=True)
    ways = list(TITLES)[::-1]
    slow = [found["ways"][way]["slow"] for way in ways]
    for axes, values, title, form in (
        (seconds, [each["seconds"] for each in slow], f"seconds of a step, {MBIT} Mbit/s", "{:.2f}"),
        (sent, [each["busiest_bytes"] / 1e6 for each in slow], "MB sent by the busiest process in a step", "{:.1f}"),
    ):
        bars = axes.barh([TITLES[way] for way in ways], values, color="#1f77b4")
        axes.bar_label(bars, labels=[form.format(value) for value in values], padding=3)
        axes.set_xscale("log")
        axes.set_xlim(right=max(values) * 4)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def page(found: Found) -> str:
    """Markdown page about the picture."""
    setting = TableSetting(ways=("rows",), workers=WORKERS, rows=found["rows"])
    ways, ran_on = found["ways"], found["machine"]
    rows = ways["rows"]["slow"]
    lines = [
        "# One table on slow links",
        "",
        "Embedding lookups can fill the network long before a processor is busy.",
        f"Here {WORKERS} workers train one table of {found['rows']:,} x {setting.dim} float32.",
        f"A global batch has {setting.batch:,} rows of {setting.columns} ids, whose frequencies are ~ rank^-1.05.",
        f"The link of each process is limited to {MBIT} Mbit/s in both directions, by a token bucket of the kernel",
        "(`tc tbf`) in a network namespace of its own. Times and bytes are measured, medians of 5 steps (dense: 2).",
        "",
        "`python -m studies.embedding_links` writes this page, as root.",
        f"Machine: {ran_on['cpu']}, {ran_on['cores']} cores; load average before the run {ran_on['load_before']:.1f}.",
        "",
        f"![seconds and bytes of a step]({NAME}.png)",
        "",
        f"| way | processes | s per step, {MBIT} Mbit/s | beside rows | s, no limit | MB of the busiest | CPU ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, title in TITLES.items():
        slow, free = ways[way]["slow"], ways[way]["free"]
        cells = [
            title,
            str(slow["ranks"]),
            f"{slow['seconds']:.3f}",
            f"{slow['seconds'] / rows['seconds']:.1f}x",
            f"{free['seconds']:.3f}",
            f"{slow['busiest_bytes'] / 1e6:.2f}",
            f"{free['cpu_s'] * 1e3:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "- Dense gradients send the whole table in every step, so their time grows with its rows.",
        "- A parameter server is one more process. All lookups and gradients pass its link, twice a step.",
        "- One owner that gets each row once sends less, but still all of it over one link.",
        "- With rows on their owners, every link carries an equal share.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args(arguments)
    run_study(options, NAME, lambda: study(options.rows), page=page, picture=picture)


if __name__ == "__main__":
    main()
