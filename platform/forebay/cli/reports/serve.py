"""`forebay report --serve`: the report of a run in a browser while the run trains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import typer

from forebay.errors import InvalidOption

DEFAULT_PORT = 8275


def serve_runs(paths: Sequence[str], port: int, *, is_sweep: bool) -> None:
    """Serve the report of the runs in the folders `paths` until Ctrl-C.

    Raises `InvalidOption` for a sweep, a folder without a run, and a port that cannot be used.
    """
    # Imported here because they take seconds to import and the other commands do not need them.
    from forebay.training.run_report.live import CachedPage, PageServer, live_page  # noqa: PLC0415
    from forebay.training.run_report.recorded_run import load_run  # noqa: PLC0415
    from forebay.training.run_report.report_page import report_of  # noqa: PLC0415

    if is_sweep:
        raise InvalidOption(
            f"{paths[0]} is a sweep, and --serve shows runs. Give folders of its runs, in runs/, or leave out --serve."
        )
    # A wrong folder, or too many, ends the command. A record that cannot be read later is shown on the page.
    report_of([load_run(path) for path in paths])
    with PageServer(CachedPage(partial(live_page, paths)), port) as server:
        typer.echo(f"{server.url} shows the report until Ctrl-C.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
