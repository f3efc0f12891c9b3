"""`forebay rows`: the rows of files that any past step of a run was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.output import print_json, print_table
from forebay.cli.rows.cells import value_text
from forebay.cli.rows.names import Names, name_facts, name_lines, name_text
from forebay.errors import InvalidOption
from forebay.storage.atomic import write_atomically

if TYPE_CHECKING:
    from forebay.training.runs.rows.step_rows import StepRows

_SHOWN_ROWS = 20


def rows(
    run: Annotated[str, typer.Argument(help="Folder or URI of a run.", metavar="RUN")],
    step: Annotated[int, typer.Option(help="Step of the run, from 1, as the progress shows it.")],
    rank: Annotated[int | None, typer.Option(help="Only the rows of this rank.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Read the rows, and print their values.")] = False,
    columns: Annotated[str | None, typer.Option(help="With --show: only these columns, separated by commas.")] = None,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="The batch that a monitor left out at this step, instead of its own.")
    ] = False,
    out: Annotated[
        str | None, typer.Option(help="File for the names of all rows, one a line: a skip list.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print which rows a step was trained on: file, row group, row. Computed from the run's record, without a log."""
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.training.runs.rows.step_rows import rows_of_step  # noqa: PLC0415

    if columns is not None and not show:
        raise InvalidOption(f"--columns {columns} chooses values to print. Add --show, or leave it out.")
    found = rows_of_step(run, step, is_skipped=skipped)
    found = found if rank is None else found.of_rank(rank)
    names = None if columns is None else columns.split(",")
    if out is not None:
        write_atomically(out, name_lines(found.rows).encode())
    if as_json:
        print_json(_facts(found, run, rank) | {"rows": _as_facts(found, found.values(None, names) if show else None)})
        return
    size = found.trained.world_size
    whose = f"{size} worker{'s' if size > 1 else ''}" if rank is None else f"rank {rank} of {size}"
    typer.echo(f"step {step}: {found.positions}; {len(found.rank)} {found.located.noun} of {whose}")
    _print_rows(found, found.values(_SHOWN_ROWS, names) if show else None)
    if len(found.rank) > _SHOWN_ROWS:
        rest = f"... and {len(found.rank) - _SHOWN_ROWS} more; --json prints all"
        typer.echo(f"{rest}, --out FILE writes their names." if out is None else f"{rest}.")


def _facts(found: StepRows, run: str, rank: int | None) -> dict[str, Any]:
    trained = found.trained
    spans = [{"epoch": epoch, "start": start, "stop": stop} for epoch, start, stop in trained.spans]
    facts: dict[str, Any] = {"run": run, "plan": found.located.order.id, "step": trained.step, "batches": spans}
    return facts | {"world": trained.world_size, "rank": rank}


def _as_facts(found: StepRows, values: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    rows: Names = found.rows
    facts = [name_facts(row) | {"rank": rank} for row, rank in zip(rows, found.rank.tolist(), strict=True)]
    return facts if values is None else [row | {"values": each} for row, each in zip(facts, values, strict=True)]


def _print_rows(found: StepRows, values: list[dict[str, Any]] | None) -> None:
    rows: Names = found.located.take(slice(_SHOWN_ROWS)).named()
    titles, cells = ["row"], [[name_text(row)] for row in rows]
    if found.trained.world_size > 1:
        titles.append("rank")
        cells = [[*row, str(rank)] for row, rank in zip(cells, found.rank.tolist(), strict=False)]
    if found.located.order.names:
        titles.append("dataset")
        cells = [[*cell, row.source] for cell, row in zip(cells, rows, strict=True)]
    if values is not None:
        names = list(dict.fromkeys(name for each in values for name in each))
        titles += names
        cells = [
            [*cell, *(value_text(each[name]) if name in each else "" for name in names)]
            for cell, each in zip(cells, values, strict=True)
        ]
    print_table(titles, cells)
