"""`forebay peek`: rows of a dataset, of a job's data or of a step of a run, as a table of one line per row."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from forebay.cli.arguments import AsJson, Parameters
from forebay.cli.output import output_width, print_json, print_table
from forebay.cli.rows.cells import cut_text, value_text
from forebay.cli.rows.names import Names, name_facts, name_text
from forebay.cli.rows.selection import SelectedRows, is_run, rows_of_data, rows_of_job, rows_of_run
from forebay.errors import InvalidOption, whole_number
from forebay.report.fitted_table import columns_that_fit

_NAMED_COLUMNS = 12
"""Columns that have no room and are named. More are counted."""


def peek(
    source: Annotated[
        str,
        typer.Argument(
            help="A dataset as for `forebay scan`, a manifest (.json), a job file (.py), or the folder of a run.",
            metavar="SOURCE",
        ),
    ],
    parameters: Parameters = None,
    step: Annotated[int | None, typer.Option(help="Of a run: step, from 1. 1 by default.")] = None,
    rank: Annotated[int | None, typer.Option(help="Of a run: only the rows of this rank.")] = None,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="Of a run: the batch that a monitor left out at this step.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of a dataset: seed of the order. 0 by default.")] = None,
    num_rows: Annotated[int, typer.Option("--rows", help="Number of rows.")] = 10,
    columns: Annotated[
        str | None, typer.Option(help="Only these columns, separated by commas. Those that have room by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show rows in the order of training: their names, and the values in their files. One line per row."""
    whole_number("--rows", num_rows, least=1)
    of_run = {"--step": step is not None, "--rank": rank is not None, "--skipped": skipped}
    of_data = {"--seed": seed is not None}
    if source.endswith(".py"):
        _refuse(of_run | of_data, "a job file")
        found = rows_of_job(source, parameters or (), num_rows, quiet=as_json)
    elif parameters:
        raise InvalidOption(
            f"{parameters[0]!r} is a parameter of a job file (.py), and {source} is none. Leave it out."
        )
    elif is_run(source):
        _refuse(of_data, "a run")
        found = rows_of_run(source, 1 if step is None else step, rank, num_rows, is_skipped=skipped)
    else:
        _refuse(of_run, "a dataset")
        found = rows_of_data(source, seed or 0, num_rows, quiet=as_json)
    values = found.located.values(None if columns is None else columns.split(","))
    if as_json:
        print_json(_facts(found, source, values))
        return
    typer.echo(f"{found.whose}: {len(found.located)} of {found.total} {found.located.noun}")
    _print_rows(found, values, is_chosen=columns is not None)


def _refuse(given: dict[str, bool], kind: str) -> None:
    """Raise `InvalidOption` for an option that is given."""
    if names := [name for name, is_given in given.items() if is_given]:
        raise InvalidOption(
            f"{names[0]} is of no use for {kind}. Leave it out. `forebay peek --help` says what has it."
        )


def _facts(found: SelectedRows, source: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    names: Names = found.located.named()
    rows = [name_facts(row) | {"values": each} for row, each in zip(names, values, strict=True)]
    if found.rank is not None:
        rows = [row | {"rank": rank} for row, rank in zip(rows, found.rank.tolist(), strict=True)]
    return {"from": source, "plan": found.located.order.id, "of": found.whose, "total": found.total, "rows": rows}


def _print_rows(found: SelectedRows, values: list[dict[str, Any]], *, is_chosen: bool) -> None:
    """Print names and values. Without columns `is_chosen`, those that have room on a line."""
    rows: Names = found.located.named()
    width = output_width()
    names = [name_text(row) for row in rows]
    # Beside long names no value has room: they follow below, and the lines have numbers.
    is_apart = max(map(len, names)) > width // 2
    titles, cells = ["row"], [[f"#{number}"] if is_apart else [name] for number, name in enumerate(names, 1)]
    if found.located.order.names:
        titles.append("dataset")
        cells = [[*cell, row.source] for cell, row in zip(cells, rows, strict=True)]
    if found.rank is not None:
        titles.append("rank")
        cells = [[*cell, str(rank)] for cell, rank in zip(cells, found.rank.tolist(), strict=True)]
    kept = len(titles)
    columns = list(dict.fromkeys(name for each in values for name in each))
    titles += [cut_text(name) for name in columns]
    cells = [
        [*cell, *(value_text(each[name]) if name in each else "" for name in columns)]
        for cell, each in zip(cells, values, strict=True)
    ]
    shown = range(len(titles)) if is_chosen else columns_that_fit(titles, cells, width, kept=kept)
    print_table([titles[number] for number in shown], [[cell[number] for number in shown] for cell in cells])
    if is_apart:
        for number, name in enumerate(names, 1):
            typer.echo(f"#{number} {name}")
    left_out = [name for number, name in enumerate(columns, kept) if number not in shown]
    if left_out:
        typer.echo(textwrap.fill(_left_out_text(left_out), width, break_on_hyphens=False))


def _left_out_text(names: list[str]) -> str:
    more = len(names) - _NAMED_COLUMNS
    named = ", ".join(names[:_NAMED_COLUMNS]) + (f" and {more} more" if more > 0 else "")
    return (
        f"No room for {len(names)} column{'s' if len(names) > 1 else ''}: {named}. --columns chooses, --json has all."
    )
