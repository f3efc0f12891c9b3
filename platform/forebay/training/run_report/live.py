"""Page of a run while it trains.

Its report, read from the run's record again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay.errors import ForebayError
from forebay.report.server import EVERY_S, KEEP_POSITION, LivePage, error_page, reload_script
from forebay.training.run_report.recorded_run import load_run
from forebay.training.run_report.report_page import report_of


def live_page(paths: Sequence[str], reload_s: float = EVERY_S) -> LivePage:
    """Return the report of running runs.

    `paths` are their folders. It reloads itself every `reload_s` seconds until all runs have ended.

    A record that cannot be read becomes a page with the error, which reloads itself too.
    """
    try:
        runs = [load_run(path) for path in paths]
        is_live = any(run.state == "under way" for run in runs)
        return LivePage(text=report_of(runs, KEEP_POSITION + (reload_script(reload_s) if is_live else "")))
    except (OSError, ForebayError) as error:
        return error_page("The record of the run could not be read", error, reload_s)
