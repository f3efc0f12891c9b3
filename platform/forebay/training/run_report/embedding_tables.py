"""Report section on the embedding tables of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from markupsafe import Markup

from forebay.report.elements import element, joined, row, section, table
from forebay.runtime.formatting import bytes_text, count_text

PREFIX = "tables/"
"""Start of the names of the metrics of tables. The names of the table and of the metric follow."""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _number(mean: float) -> str:
    return f"{mean:.2g}" if mean < 9.95 else count_text(mean)


_COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "hottest_share": ("hottest id", _percent),
    "unique_share": ("unique ids", _percent),
    "sent_bytes": ("bytes sent", bytes_text),
    "touched_rows": ("rows trained", _number),
    "imbalance": ("busiest rank", "{:.2f}x".format),
    "collisions": ("collisions", count_text),
    "bad_ids": ("ids beyond it", _number),
    "rows": ("rows", count_text),
    "admitted_rows": ("admitted", _number),
    "evicted_rows": ("evicted", _number),
    "shared_share": ("without a row", _percent),
}
"""Title and text of each metric. Those that no table has are left out."""


def tables_section(metrics: Mapping[str, float]) -> Markup:
    """Return the use of each table.

    `metrics` are means over an epoch. Empty without tables.
    """
    uses: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        if name.startswith(PREFIX):
            title, _, key = name.removeprefix(PREFIX).rpartition("/")
            uses.setdefault(title, {})[key] = value
    if not uses:
        return joined(())
    shown = [key for key in _COLUMNS if any(key in use for use in uses.values())]
    rows = [
        row([title, *(_COLUMNS[key][1](use[key]) if key in use else "-" for key in shown)])
        for title, use in uses.items()
    ]
    caption = element("p", "In the last epoch. Bytes are per rank and step, rows and ids per step.")
    head = ["table", *(_COLUMNS[key][0] for key in shown)]
    return section("Embedding tables", table(head, rows, class_="numbers", label="Embedding tables"), caption)
