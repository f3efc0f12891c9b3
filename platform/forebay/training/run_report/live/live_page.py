"""Page of a run while it trains: its report, read from the run's record again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.errors import ForebayError
from forebay.report.elements import element
from forebay.report.page import document, fragment
from forebay.storage.credentials import redact
from forebay.training.run_report.live.reload import KEEP_PLACE, reload_script
from forebay.training.run_report.recorded_run import load_run
from forebay.training.run_report.report_page import report_of

EVERY_S = 5.0
"""Time between two readings. Drivers record every 15 s, when training begins, and at the end of each epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """HTML document. `is_error`: the record could not be read."""

    text: str
    is_error: bool = False


class CachedPage:
    """Page that `make` returns, made at most once in `every_s` seconds however many threads ask for it."""

    def __init__(
        self, make: Callable[[], LivePage], every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._every_s, self._clock = make, every_s, clock
        self._lock = threading.Lock()
        self._page: LivePage | None = None
        self._made_at = 0.0

    def __call__(self) -> LivePage:
        """The page. Threads wait while one of them makes it."""
        with self._lock:
            if self._page is None or self._clock() - self._made_at >= self._every_s:
                self._page = self._make()
                # After it was made: a slow storage gets its pause too.
                self._made_at = self._clock()
            return self._page


def live_page(paths: Sequence[str], reload_s: float = EVERY_S) -> LivePage:
    """Report of the runs in the folders `paths`. It reloads itself every `reload_s` seconds until all runs have ended.

    A record that cannot be read becomes a page with the error, which reloads itself too.
    """
    try:
        runs = [load_run(path) for path in paths]
        is_live = any(run.state == "under way" for run in runs)
        return LivePage(text=report_of(runs, KEEP_PLACE + (reload_script(reload_s) if is_live else "")))
    except (OSError, ForebayError) as error:
        return _error_page(error, reload_s)


def _error_page(error: Exception, reload_s: float) -> LivePage:
    text = element("p", redact(str(error)), class_="notice failed")
    again = element("p", f"This page tries again every {reload_s:g} s.", class_="quiet")
    content = fragment("The record of the run could not be read", text, again)
    return LivePage(text=document("forebay report", content, reload_script(reload_s)), is_error=True)
