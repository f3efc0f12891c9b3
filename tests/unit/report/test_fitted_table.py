"""Every cell of a table is on the screen, however narrow it is."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from forebay.report.fitted_table import FittedTable, columns_that_fit


def drawn(table: FittedTable, width: int) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width, highlight=False).print(table)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


@pytest.mark.parametrize("width", range(20, 100))
def test_no_cell_is_cut(width: int) -> None:
    names = ["run", *(f"column_{number}" for number in range(8))]
    rows = [[f"r{row}", *(f"cell_{row}_{number}" for number in range(8))] for row in range(3)]
    lines = drawn(FittedTable(names, rows, title="a title", caption="a caption"), width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert set(names) <= set(words) and {cell for row in rows for cell in row} <= set(words)
    assert words[:2] == ["a", "title"] and words[-2:] == ["a", "caption"]


def test_one_table_where_there_is_room_and_more_only_where_there_is_not() -> None:
    names, rows = ["run", "aaaa", "bbbb"], [["ctr", "1", "2"]]
    fits = 2 + 3 + 2 + 4 + 2 + 4
    assert sum("run" in line for line in drawn(FittedTable(names, rows), fits)) == 1
    assert sum("run" in line for line in drawn(FittedTable(names, rows), fits - 1)) == 2


def test_a_cell_wider_than_the_screen_is_folded() -> None:
    path = "/data/" + "x" * 90
    lines = drawn(FittedTable(["file", "row"], [[path, "7"]], justify="left"), 40)
    assert max(map(len, lines)) <= 40
    assert path in "".join(line.split()[0] for line in lines[3:] if line.split())


def test_cells_are_shown_as_they_are() -> None:
    assert any("[red]a[/b]" in line for line in drawn(FittedTable(["file"], [["[red]a[/b]"]]), 40))


@pytest.mark.parametrize("width", range(20, 70))
def test_chosen_columns_are_one_table_and_the_others_had_no_room(width: int) -> None:
    names = ["row", "a", "a_wider_column", "b", "長い"]
    rows = [["day=1/a:0:17", "1", "x", "a value", "é"]]
    chosen = columns_that_fit(names, rows, width)
    lines = drawn(FittedTable([names[n] for n in chosen], [[rows[0][n] for n in chosen]], justify="left"), width)
    assert sum("row" in line for line in lines) == 1 and sum("day=1" in line for line in lines) == 1
    assert chosen[0] == 0 and max(map(cell_len, lines)) <= width
    for other in set(range(len(names))) - set(chosen):
        more = sorted({*(number for number in chosen if number < other), other})
        lines = drawn(FittedTable([names[n] for n in more], [[rows[0][n] for n in more]], justify="left"), width)
        assert len(more) == 2 or sum("row" in line for line in lines) == 2
