"""Tables that fit a terminal of any width.

No cell is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from forebay.runtime.formatting import printable

_EDGES = 2
_GAP = 2


def columns_that_fit(names: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, kept: int = 1) -> list[int]:
    """Return the columns that fit into `width` characters.

    The first `kept`, and each further one that fits beside the columns before it.
    """
    chosen: list[int] = []
    used = _EDGES - _GAP
    for number, column in enumerate(_widths(names, rows)):
        if number < kept or used + _GAP + column <= width:
            chosen.append(number)
            used += _GAP + column
    return chosen


class FittedTable:
    """A table that is split where the terminal is narrow.

    If a table is wider than the terminal, the next columns follow in a table below, which repeats the first column. A
    column that does not fit beside the first one is folded.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        title: str | None = None,
        caption: str | None = None,
        justify: JustifyMethod = "right",
    ) -> None:
        self._names = [printable(name) for name in names]
        self._rows = [[printable(str(cell)) for cell in row] for row in rows]
        self._title, self._caption, self._justify = title, caption, justify

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        groups = self._groups(options.max_width)
        for number, group in enumerate(groups):
            title = self._title if number == 0 else None
            yield self._table(group, title, self._caption if number == len(groups) - 1 else None)

    def _groups(self, width: int) -> list[list[int]]:
        """Return the column numbers of each table.

        For a width of `width` characters.
        """
        widths = _widths(self._names, self._rows)
        groups, used = [[0]], _EDGES + widths[0]
        for number in range(1, len(widths)):
            if used + _GAP + widths[number] > width and len(groups[-1]) > 1:
                groups.append([0])
                used = _EDGES + widths[0]
            groups[-1].append(number)
            used += _GAP + widths[number]
        return groups

    def _table(self, group: Sequence[int], title: str | None, caption: str | None) -> Table:
        table = Table(
            title=title and Text(title),
            caption=caption and Text(caption),
            title_justify="left",
            caption_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for number in group:
            table.add_column(Text(self._names[number]), justify=self._justify, overflow="fold")
        for row in self._rows:
            # As `Text`: a file's name may look like rich's markup.
            table.add_row(*(Text(row[number]) for number in group))
        return table


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Characters of the widest line of each column."""
    columns = zip(names, *rows, strict=True)
    return [max(cell_len(line) for text in column for line in text.split("\n")) for column in columns]
