"""Names of the rows that a verdict is about."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from forebay.data.manifest.file_rows import FileRow, FileRows
from forebay.data.plan.order import Order
from forebay.data.provenance.order_rows import OrderRows
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.state.data_progress import Span, num_rows
from forebay.world import World

NAMED = 3
"""Rows that are named in a reason: enough to open a file and look."""


def rows_text(verdict: Verdict, spans: Sequence[Span], order: Order, ranks: Sequence[World], run: str) -> str:
    """Describe the rows of a bad step.

    The first rows of the ranks at fault, their number, and the command for all.

    Empty for a verdict about no single step. Of windows of series, only the command: their names are read from files,
    and this text is a pure function of the order.

    Args:
        verdict: Verdict of all ranks.
        spans: Batches of its step.
        order: Order of the run.
        ranks: Ranks whose rows are at fault.
        run: Folder of the run. Empty for none: then there is no command.
    """
    if verdict.step is None or not spans or (order.windows and not run):
        return ""
    is_one = len(ranks) == 1 < ranks[0].size
    whose = f" on rank {ranks[0].rank}" if is_one else ""
    options = f"{f' --rank {ranks[0].rank}' if is_one else ''}{' --skipped' if verdict.action is Action.SKIP else ''}"
    command = f"forebay rows {shlex.quote(run)} --step {verdict.step}{options}"
    if order.windows:
        return f". Windows{whose}: {command}"
    rows = _first_rows(spans, order, ranks)
    named = ", ".join(f"{row.source} {row}".lstrip() for row in rows)
    more = f" and others of {num_rows(spans)}" if len(rows) == NAMED else ""
    return f". Rows{whose}: {named}{more}{f' (all: {command})' if run else ''}"


def _first_rows(spans: Sequence[Span], order: Order, ranks: Sequence[World]) -> list[FileRow]:
    lanes = sorted(lane for each in ranks for lane in order.owned_lanes(each))
    found = OrderRows.at(order, (), spans, lanes).take(slice(NAMED))
    return list(FileRows.of(order.manifests, found.block, found.row, order.names))
