"""Names of the rows that a verdict is about, and the command that prints all of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import islice

from forebay.manifest.rows.file_rows import FileRow
from forebay.plan.order import Order
from forebay.train.monitors.monitor import Action, Verdict
from forebay.train.state.data_progress import Span, num_rows
from forebay.world import World

NAMED = 3
"""Rows that are named in a reason: enough to open a file and look."""


def rows_text(verdict: Verdict, spans: Sequence[Span], order: Order, ranks: Sequence[World], run: str) -> str:
    """Text about the rows of a bad step: the first rows of the ranks at fault, their number, and the command for all.

    Empty for a verdict about no single step, and for windows of series, which are no rows of files.

    Args:
        verdict: Verdict of all ranks.
        spans: Batches of its step.
        order: Order of the run.
        ranks: Ranks whose rows are at fault.
        run: Folder of the run. Empty for none: then there is no command.
    """
    if verdict.step is None or not spans or order.windows:
        return ""
    size = ranks[0].size
    rows = list(islice(_rows(spans, order, ranks), NAMED))
    named = ", ".join(f"{row.source} {row}".lstrip() for row in rows)
    is_one = len(ranks) == 1 < size
    more = f" and others of {num_rows(spans)}" if len(rows) == NAMED else ""
    text = f". Rows{f' on rank {ranks[0].rank}' if is_one else ''}: {named}{more}"
    if not run:
        return text
    options = f"{f' --rank {ranks[0].rank}' if is_one else ''}{' --skipped' if verdict.action is Action.SKIP else ''}"
    return f"{text} (all: forebay rows {shlex.quote(run)} --step {verdict.step}{options})"


def _rows(spans: Sequence[Span], order: Order, ranks: Sequence[World]) -> Iterator[FileRow]:
    lanes = sorted(lane for each in ranks for lane in order.owned_lanes(each))
    for span in spans:
        yield from order.file_rows(*span, lanes)
