"""Progress of preparations on standard error.

Fast to import.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forebay.data.manifest.prepared import Prepared
from forebay.data.preparation.progress import PreparationProgress, Report, preparation_listener, present_listener
from forebay.report.console import SafeConsole

LINE_EVERY_S = 5.0


class PreparationDisplay:
    """Prints messages, and progress every five seconds.

    Keeps the datasets in `found`. `also` is called with each message and progress, as text.
    """

    def __init__(self, also: Callable[[str], object] = lambda _: None) -> None:
        self.found: list[Prepared] = []
        self._also = also
        self._console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
        self._due = time.monotonic() + LINE_EVERY_S

    def __call__(self, report: Report) -> None:
        match report:
            case Prepared():
                self.found.append(report)
            case PreparationProgress():
                self._also(str(report))
                if time.monotonic() >= self._due:
                    self._console.print(str(report), markup=False)
                    self._due = time.monotonic() + LINE_EVERY_S
            case _:
                self._also(report)
                self._console.print(report, markup=False)


@contextmanager
def shown_preparations(also: Callable[[str], object] = lambda _: None) -> Iterator[PreparationDisplay]:
    """Show the preparations of this thread.

    This lasts for the length of the block. Messages and progress also go to `also`. Within another such block, uses its
    display.
    """
    current = present_listener()
    if isinstance(current, PreparationDisplay):
        yield current
        return
    display = PreparationDisplay(also)
    with preparation_listener(display):
        yield display
