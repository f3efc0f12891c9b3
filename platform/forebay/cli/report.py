"""`forebay report`: one HTML file about runs or a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from forebay.cli.arguments import AsJson, refuse_folder
from forebay.cli.output import print_json, print_line
from forebay.cli.settings import RunStorage, folder_of
from forebay.errors import BadUsage, InvalidOption

_PORT = 8275
COMPARISON_FILE = "report.html"


def report(
    runs: Annotated[
        list[str],
        typer.Argument(help="Names or folders of a run or of a sweep. Up to five runs.", metavar="RUN|SWEEP [RUN]..."),
    ],
    storage: RunStorage = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="File or URI to write.",
            metavar="FILE",
            show_default="report.html or sweep.html in the folder of one, ./report.html for several",
        ),
    ] = None,
    as_json: AsJson = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Write no file. Show the page to a browser of this machine until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of --serve on 127.0.0.1. 0: a free one.", min=0, max=65535)] = _PORT,
) -> None:
    """Write one HTML file about a run or a sweep.

    It shows curves, where the time went, cache, events with their cost, and what was run. Several runs are compared
    side by side, with what differed. Works for runs that are under way, and for those that were killed. With --serve,
    the page of a run that trains reloads itself until the run has ended.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.sweep.record.record import load_record  # noqa: PLC0415

    if serve and (out is not None or as_json):
        raise BadUsage("--serve writes no file and prints no JSON. Leave out --out and --json, or --serve.")
    refuse_folder(out)
    runs = [folder_of(each, storage) for each in runs]
    sweeps = {path: record for path in runs if (record := load_record(path)) is not None}
    if sweeps and len(runs) > 1:
        raise InvalidOption(
            f"{next(iter(sweeps))} is a sweep, and a report compares runs. Give the sweep alone: its report has the "
            "runs of its best trials side by side. Or give folders of its runs, in runs/.",
        )
    if serve:
        _serve(runs, port, is_sweep=bool(sweeps))
        return
    facts = _of_sweep(runs[0], out) if sweeps else _of_runs(runs, out)
    if as_json:
        print_json(facts)
    else:
        print_line(str(facts["html"]))


def _of_runs(paths: list[str], out: str | None) -> dict[str, object]:
    from forebay.report.page import write_page  # noqa: PLC0415 - as above
    from forebay.training.run_report.recorded_run import load_run  # noqa: PLC0415
    from forebay.training.run_report.report_page import report_of, write_report  # noqa: PLC0415
    from forebay.training.run_report.summary import differences, facts_of  # noqa: PLC0415

    found = [load_run(path) for path in paths]
    if out is None and len(found) == 1:
        html = write_report(found[0])
    else:
        html = write_page(out or COMPARISON_FILE, report_of(found), "the report")
    return {"html": html, "runs": [facts_of(run) for run in found], "differences": differences(found)}


def _of_sweep(path: str, out: str | None) -> dict[str, object]:
    from forebay.report.page import write_page  # noqa: PLC0415 - as above
    from forebay.storage.filesystem import below  # noqa: PLC0415
    from forebay.sweep.record.record import load_record  # noqa: PLC0415
    from forebay.sweep.report.page import FILE_NAME, best_runs, sweep_report  # noqa: PLC0415
    from forebay.training.run_report.summary import differences, facts_of  # noqa: PLC0415

    record = load_record(path)
    assert record is not None
    found = best_runs(record, path)
    html = write_page(out or below(path, FILE_NAME), sweep_report(record, found), "the report")
    return {
        "html": html,
        "sweep": record.name,
        "best_trial": record.best.id if record.best else None,
        "runs": [facts_of(run) for run in found],
        "differences": differences(found),
    }


def _serve(paths: Sequence[str], port: int, *, is_sweep: bool) -> None:
    """Serve the report of runs until Ctrl-C.

    `paths` are their folders. Raises `InvalidOption` for a sweep, a folder without a run, and a port that cannot be
    used.
    """
    # Imported here because they take seconds to import and the other commands do not need them.
    from forebay.report.server import CachedPage, PageServer  # noqa: PLC0415
    from forebay.training.run_report.live import live_page  # noqa: PLC0415
    from forebay.training.run_report.recorded_run import load_run  # noqa: PLC0415
    from forebay.training.run_report.report_page import report_of  # noqa: PLC0415

    if is_sweep:
        raise InvalidOption(
            f"{paths[0]} is a sweep, and --serve shows runs. Give folders of its runs, in runs/, or leave out --serve."
        )
    # A wrong folder, or too many, ends the command. A record that cannot be read later is shown on the page.
    report_of([load_run(path) for path in paths])
    with PageServer(CachedPage(partial(live_page, paths)), port) as server:
        print_line(f"{server.url} shows the report until Ctrl-C.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
