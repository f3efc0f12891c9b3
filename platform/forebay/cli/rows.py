"""`forebay rows`: rows of a dataset, job or step."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len

from forebay.cli.arguments import AllowLocation, AsJson, Parameters, as_usage
from forebay.cli.output import output_width, print_json, print_line, print_table
from forebay.cli.selected_rows import Part, SelectedRows, rows_of_data, rows_of_job, rows_of_run, run_of
from forebay.cli.settings import RunStorage
from forebay.data.manifest.file_rows import FileRow
from forebay.data.manifest.file_windows import FileWindow
from forebay.errors import BadUsage, whole_number
from forebay.report.fitted_table import columns_that_fit
from forebay.runtime.formatting import printable
from forebay.storage.atomic import write_atomically

Names = Sequence[FileRow | FileWindow]

_CELL = 24
"""Characters of a value in a table. JSON has all of them."""
_SPANS = 2
"""Spans of a window in a table. JSON has all of them."""
_SHOWN_ROWS = 10
_NAMED_COLUMNS = 12
"""Columns without room that are named. More are counted."""

_OF_RUN = ("--skipped",)
_OF_DATA = ("--epoch", "--world")
_OF_DATASET = ("--seed", "--lanes", "--batch")


def rows(
    source: Annotated[
        str,
        typer.Argument(
            help="A dataset as for `forebay scan`, a manifest (.json), a job file (.py), or a run: its name or folder.",
            metavar="SOURCE",
        ),
    ],
    parameters: Parameters = None,
    storage: RunStorage = None,
    step: Annotated[
        int | None, typer.Option(help="Step of a run, or global batch of an epoch, from 1.", show_default="1 of a run")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only the rows of this rank.")] = None,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="Of a run: the batch that a monitor left out at this step.")
    ] = False,
    epoch: Annotated[int | None, typer.Option(help="Of data: epoch, from 0.", show_default="0")] = None,
    world: Annotated[int | None, typer.Option(help="Of data: number of ranks.", show_default="1")] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", help="Of a dataset: rows of a global batch, for --step.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of a dataset: seed of the order.", show_default="0")] = None,
    lanes: Annotated[
        int | None, typer.Option(help="Of a dataset: lanes of the plan.", show_default="from the data")
    ] = None,
    num_rows: Annotated[
        int | None,
        typer.Option("--rows", "-n", help="Number of rows to show.", show_default="10, and with --json a whole step"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", "-c", help="Only these columns, separated by commas.", show_default="those that have room"
        ),
    ] = None,
    names_only: Annotated[bool, typer.Option("--names", help="Print names only. Reads no row.")] = False,
    allow_location: AllowLocation = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", help="File for the names of all these rows, one a line: a skip list.", metavar="FILE"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show names and values of rows, in training order.

    One line per row.
    """
    if num_rows is not None:
        with as_usage():
            whole_number("--rows", num_rows, least=1)
    if columns is not None and names_only:
        raise BadUsage(f"--columns {columns} chooses values, and --names prints none. Leave one of them out.")
    given: dict[str, object] = {
        "--skipped": skipped or None,
        "--epoch": epoch,
        "--world": world,
        "--batch": batch,
        "--seed": seed,
    }
    given |= {"--lanes": lanes, "--allow-location": allow_location}
    part = Part(epoch=epoch or 0, step=step, world=world or 1, rank=rank, first=num_rows or _SHOWN_ROWS)
    if source.endswith(".py"):
        _refuse(given, (*_OF_RUN, *_OF_DATASET, "--allow-location"), "a job file")
        # Most jobs have a parameter of this name.
        words = [*(parameters or ()), *([] if storage is None else [f"storage={storage}"])]
        found = rows_of_job(source, words, part, quiet=as_json)
    elif parameters:
        raise BadUsage(
            f"{parameters[0]!r} is a parameter of a job file (.py), and {source} is something else. Leave it out."
        )
    elif (run := run_of(source, storage)) is not None:
        _refuse(given, (*_OF_DATA, *_OF_DATASET), "a run")
        found = rows_of_run(
            run, 1 if step is None else step, rank, is_skipped=skipped, allow_locations=allow_location or ()
        )
    else:
        _refuse(given, _OF_RUN, "a dataset")
        found = rows_of_data(
            source,
            part,
            seed=seed or 0,
            lanes=lanes,
            batch=batch,
            allow_locations=allow_location or (),
            quiet=as_json,
        )
    if out is not None:
        write_atomically(out, name_lines(found.located.named()).encode())
    shown = found if as_json and num_rows is None else found.first(num_rows or _SHOWN_ROWS)
    values = None if names_only else shown.located.values(None if columns is None else columns.split(","))
    if as_json:
        print_json(_facts(shown, source, values))
        return
    print_line(f"{found.whose}: {len(shown.located)} of {found.total} {found.located.noun}")
    _print_rows(shown, values, is_chosen=columns is not None)
    if rest := len(found.located) - len(shown.located):
        print_line(f"... and {rest} more: --rows shows them" + ("." if out else ", --out FILE writes their names."))


def _refuse(given: Mapping[str, object], names: tuple[str, ...], kind: str) -> None:
    """Raise `InvalidOption` if an option of `names` is given."""
    if wrong := [name for name in names if given[name] is not None]:
        raise BadUsage(f"{wrong[0]} is of no use for {kind}. Leave it out. `forebay rows --help` says what has it.")


def _facts(found: SelectedRows, source: str, values: list[dict[str, Any]] | None) -> dict[str, Any]:
    rows = [name_facts(row) for row in found.located.named()]
    if found.rank is not None:
        rows = [row | {"rank": rank} for row, rank in zip(rows, found.rank.tolist(), strict=True)]
    if values is not None:
        rows = [row | {"values": each} for row, each in zip(rows, values, strict=True)]
    facts = {"from": source, "plan": found.located.order.id, "of": found.whose, "total": found.total}
    return facts | dict(found.facts) | {"rows": rows}


def _print_rows(found: SelectedRows, values: list[dict[str, Any]] | None, *, is_chosen: bool) -> None:
    """Print names and values.

    Without columns `is_chosen`, those that have room on a line.
    """
    rows: Names = found.located.named()
    width = output_width()
    names = [name_text(row) for row in rows]
    # Beside long names no value has room: they follow below, and the lines have numbers.
    is_apart = max(map(len, names), default=0) > width // 2
    titles, cells = ["row"], [[f"#{number}"] if is_apart else [name] for number, name in enumerate(names, 1)]
    if found.located.order.names:
        titles.append("dataset")
        cells = [[*cell, row.source] for cell, row in zip(cells, rows, strict=True)]
    if found.shows_ranks:
        titles.append("rank")
        cells = [[*cell, str(rank)] for cell, rank in zip(cells, found.ranks, strict=True)]
    kept = len(titles)
    columns = list(dict.fromkeys(name for each in values or () for name in each))
    titles += [cut_text(name) for name in columns]
    cells = [
        [*cell, *(value_text(each[name]) if name in each else "" for name in columns)]
        for cell, each in zip(cells, values or [{}] * len(cells), strict=True)
    ]
    shown = range(len(titles)) if is_chosen else columns_that_fit(titles, cells, width, kept=kept)
    print_table([titles[number] for number in shown], [[cell[number] for number in shown] for cell in cells])
    if is_apart:
        for number, name in enumerate(names, 1):
            print_line(f"#{number} {name}")
    left_out = [name for number, name in enumerate(columns, kept) if number not in shown]
    if left_out:
        print_line(textwrap.fill(_left_out_text(left_out), width, break_on_hyphens=False))


def _left_out_text(names: list[str]) -> str:
    more = len(names) - _NAMED_COLUMNS
    named = ", ".join(names[:_NAMED_COLUMNS]) + (f" and {more} more" if more > 0 else "")
    return (
        f"No room for {len(names)} column{'s' if len(names) > 1 else ''}: {named}. --columns chooses, --json has all."
    )


def value_text(value: object) -> str:
    r"""One line of at most 24 characters.

    What steers a terminal is shown as its code.

    >>> value_text(0.1234567891), value_text(None), value_text("a\nb\x1b"), value_text([1 / 3, 2])
    ('0.123457', 'null', 'a b\\x1b', '[0.333333, 2]')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str | bytes | list):
        # A cell may hold a picture or a book.
        value = value[: 10 * _CELL]
    if isinstance(value, list):
        return cut_text(f"[{', '.join(map(value_text, value))}]")
    return cut_text("null" if value is None else str(value))


def cut_text(text: str) -> str:
    """`text` on one line, cut to 24 characters."""
    text = printable(" ".join(text.split()))
    if cell_len(text) <= _CELL:
        return text
    while cell_len(text) >= _CELL:
        text = text[:-1]
    return f"{text}…"


def name_text(row: FileRow | FileWindow) -> str:
    """Name for a table.

    Of a window of interleaved series, its first spans and the number of the others.
    """
    if isinstance(row, FileRow) or len(row.spans) <= _SPANS:
        return str(row)
    return f"{FileWindow(row.spans[:_SPANS])} and {len(row.spans) - _SPANS} more"


def name_facts(row: FileRow | FileWindow) -> dict[str, Any]:
    """Name and its parts for JSON."""
    if isinstance(row, FileRow):
        return {"name": str(row), **row._asdict()}
    spans = [{name: value for name, value in span._asdict().items() if name != "source"} for span in row.spans]
    return {"name": str(row), "spans": spans, "source": row.source}


def name_lines(rows: Names) -> str:
    """Names of rows and windows' spans, one a line."""
    names = [[str(row)] if isinstance(row, FileRow) else list(map(str, row.spans)) for row in rows]
    return "".join(f"{name}\n" for each in names for name in each)
