"""Document of the bench of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

import numpy as np

from bench.tables.setting import exchanged_bytes

Figures = Mapping[str, Any]
_STATE_BYTES = 4
"""Row-wise Adagrad has one number of state per row."""


def summarized(ranks: Sequence[Mapping[str, Any]], way: str) -> dict[str, float]:
    """Return the figures of a way: medians over steps, and means over ranks. Memory is the largest rank's."""
    every = [each[way] for each in ranks]
    return {
        **{name: mean(median(each[name]) for each in every) for name in ("seconds", "cpu_s", "sent_bytes", "unique")},
        **{name: max(each[name] for each in every) for name in ("memory_bytes", "peak_bytes")},
    }


def wire_error(rounded: Sequence[float], whole: Sequence[float]) -> float:
    """Return the root mean square of the difference, as a share of `whole`."""
    difference, values = np.subtract(rounded, whole), np.array(whole)
    return float(np.sqrt((difference**2).mean() / (values**2).mean()))


def targets(found: Figures) -> list[tuple[str, str, str, bool]]:
    """Return each target: what it is of, its bound, what was measured, and whether it is met."""
    setting, two, four = found["setting"], found["two"], found["four"]
    rows, dense = two["rows"], two["dense"]
    bound = 1.1 * exchanged_bytes(rows["unique"], setting["dim"], 2) / 1e6
    share = 1.1 * setting["rows"] * (4 * setting["dim"] + _STATE_BYTES) / 2 / 1e6
    measured = [
        ("MB sent per rank and step, 2 ranks", bound, rows["sent_bytes"] / 1e6, False),
        ("fewer bytes than dense", 200, dense["sent_bytes"] / rows["sent_bytes"], True),
        ("less CPU time than dense", 15, dense["cpu_s"] / rows["cpu_s"], True),
        ("less time than dense", 10, dense["seconds"] / rows["seconds"], True),
        ("MB of memory per rank after the steps", share, rows["memory_bytes"] / 1e6, False),
        ("MB of memory per rank at most", share, rows["peak_bytes"] / 1e6, False),
        ("MB sent per rank and step, 4 ranks", rows["sent_bytes"] / 1e6, four["rows"]["sent_bytes"] / 1e6, False),
    ]
    found_targets = []
    for name, limit, value, is_least in measured:
        is_met = value >= limit if is_least else value <= limit
        unit = "x" if is_least else ""
        found_targets.append((name, f"{'>=' if is_least else '<='} {limit:.4g}{unit}", f"{value:.4g}{unit}", is_met))
    return found_targets


def report(found: Figures) -> str:
    """Return the document."""
    setting, ran_on = found["setting"], found["machine"]
    lines = [
        "# A table of 10 million rows on two and four ranks",
        "",
        "`make bench-tables` writes this page.",
        f"A table of {setting['rows']:,} x {setting['dim']} float32, ids ~ rank^-{setting['power']}.",
        f"A global batch has {setting['batch']:,} rows of {setting['columns']} ids.",
        "Ranks are processes with one thread each. Each has a network namespace of its own, joined by a switch.",
        "Bytes are those that its link counted, with the headers of TCP/IP and Ethernet. No link is slowed down.",
        "Dense is `nn.EmbeddingBag` under DDP with SGD. The others are `fb.Table` with row-wise Adagrad.",
        "",
        f"Machine: {ran_on['cpu']}, {ran_on['cores']} cores, {ran_on['system']}.",
        f"Load average before the run: {ran_on['load_before']:.1f}.",
        "",
        "## Targets",
        "",
        "| | target | measured | |",
        "|---|---|---|---|",
        *(
            f"| {name} | {bound} | {value} | {'met' if met else '**missed**'} |"
            for name, bound, value, met in targets(found)
        ),
        "",
        "The bound of the bytes is 1.1 x U (8 + 8 dim) (R - 1) / R, for U unique ids of a rank.",
        "The bound of the memory is 1.1 x (table + state) / R. *At most* has the buffers of the steps.",
        "",
        "## Each way",
        "",
        "| ranks | way | MB sent per rank and step | unique ids | CPU ms | ms | MB of memory | at most |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(2, way, each) for way, each in found["two"].items()),
        *(_row(4, way, each) for way, each in found["four"].items()),
        "",
        "## Fewer bits on the wire",
        "",
        f"Difference of the model's output for single ids after {found['trained_steps']} steps.",
        "It is a root mean square, as a share of the output with float32 on the wire:",
        "",
        *(f"- {way}: {error:.1e}" for way, error in found["wire_errors"].items()),
    ]
    return "\n".join(lines) + "\n"


def _row(ranks: int, way: str, each: Mapping[str, float]) -> str:
    cells = [
        str(ranks),
        way,
        f"{each['sent_bytes'] / 1e6:.3f}",
        f"{each['unique']:,.0f}",
        f"{each['cpu_s'] * 1e3:.1f}",
        f"{each['seconds'] * 1e3:.1f}",
        f"{each['memory_bytes'] / 1e6:,.0f}",
        f"{each['peak_bytes'] / 1e6:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"
