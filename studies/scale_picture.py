"""The picture of docs/scale.md, drawn from the tables of that page.

python -m studies.scale_picture docs/scale.md docs/images/scale.png
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

Table = list[list[str]]
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
MODEL = re.compile(r"([\d,]+)/([\d,]+)")


def tables_of(page: str) -> list[Table]:
    """Rows of cells of each table, without the line below its head."""
    found: list[Table] = []
    is_in_table = False
    for line in page.splitlines():
        if not line.startswith("|"):
            is_in_table = False
            continue
        if not is_in_table:
            found.append([])
        is_in_table = True
        if not set(line) <= set("|-"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def number(text: str) -> float:
    """The first number of a cell."""
    return float(re.search(r"[\d,.]+", text)[0].replace(",", ""))


def table(page: str, name: str) -> Table:
    """The table that has a row of this name."""
    return next(each for each in tables_of(page) if any(row[0] == name for row in each))


def pairs(page: str) -> Iterator[tuple[int, float, float]]:
    """Nodes, measured and model: of each figure beside real nodes."""
    for name in ("all stores of parts", "kB of filters"):
        first, *rows = table(page, name)
        for row in rows:
            for nodes, cell in zip(first[1:], row[1:], strict=True):
                for measured, model in MODEL.findall(cell):
                    yield int(number(nodes)), number(measured), number(model)


def draw(page: str, picture: Path) -> None:
    """Draw the four parts."""
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 8))
    _control_plane(axes[0, 0], table(page, "coordinator: start"))
    _restart(axes[0, 1], table(page, "requests for filters there"))
    _beside_models(axes[1, 0], [*pairs(page)])
    _faults(axes[1, 1], table(page, "checkpoint stores"))
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.title.set_fontsize(11)
    figure.tight_layout()
    figure.savefig(picture, dpi=100)


def _control_plane(ax: Axes, rows: Table) -> None:
    ranks = [number(cell) for cell in rows[0][1:]]
    shown = ("start", "resize by one", "resize to half", "lost rack", "votes of a commit")
    for color, name in zip(COLORS, shown, strict=True):
        row = next(each for each in rows if each[0].endswith(f": {name}"))
        ax.loglog(ranks, [number(cell) for cell in row[1:]], "o-", color=color, label=name, markersize=4)
    steepest = [30 * n * math.log(n) / (8 * math.log(8)) for n in ranks]
    ax.loglog(ranks, steepest, ":", color="grey", label="n log n")
    ax.set(title="Calls at the coordinator or rank 0", xlabel="ranks", ylabel="calls")
    ax.legend(frameon=False, fontsize=8)


def _restart(ax: Axes, rows: Table) -> None:
    nodes = [number(cell) for cell in rows[0][1:]]
    shown = {
        "blocks from the busiest peer (mean)": "blocks it sends",
        "requests for filters there": "requests for filters",
    }
    for color, (name, label) in zip(COLORS, shown.items(), strict=False):
        row = next(each for each in rows if each[0] == name)
        ax.loglog(nodes, [number(cell) for cell in row[1:]], "o-", color=color, label=label, markersize=4)
    ax.set(
        title="The busiest node at a restart, half of the caches lost", xlabel="nodes", ylabel="count", ylim=(1, 3e3)
    )
    ax.legend(frameon=False, fontsize=8)


def _beside_models(ax: Axes, found: list[tuple[int, float, float]]) -> None:
    most = 1.5 * max(max(measured, model) for _, measured, model in found)
    line = [3, most]
    ax.fill_between(
        line, [0.8 * each for each in line], [1.2 * each for each in line], color="0.9", label="within 20 %"
    )
    ax.loglog(line, line, color="0.6", linewidth=1)
    for color, nodes in zip(COLORS, sorted({each[0] for each in found}), strict=False):
        points = [(model, measured) for of, measured, model in found if of == nodes]
        ax.loglog(*zip(*points, strict=True), "o", color=color, label=f"{nodes} nodes", markersize=4, alpha=0.7)
    ax.set(title="Small Ray nodes beside the models: calls, requests, kB", xlabel="model", ylabel="measured")
    ax.legend(frameon=False, fontsize=8)


def _faults(ax: Axes, rows: Table) -> None:
    def total(cell: str) -> float:
        return sum(float(each) for each in re.findall(r"\d+", cell))

    names = [row[0].replace(" together", "") for row in rows[1:]][::-1]
    killed, frozen = ([total(row[column]) for row in rows[1:]][::-1] for column in (1, 2))
    ax.barh(names, killed, color=COLORS[0], label="killed, ended, lost, cut")
    ax.barh(names, frozen, left=killed, color=COLORS[4], label="frozen, starved")
    ax.set(title="Faults that struck runs under Ray and Horovod", xlabel="faults; no run was lost")
    ax.tick_params(axis="y", labelsize=8)
    ax.legend(frameon=False, fontsize=8, loc="lower right")


if __name__ == "__main__":
    draw(Path(sys.argv[1]).read_text(), Path(sys.argv[2]))
