"""Output to terminals that foreign text cannot steer."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from forebay.runtime.formatting import printable


class SafeConsole(Console):
    """Console of rich that shows control characters instead of sending them.

    Only the text of what is rendered is escaped, see `printable`: colors and the cursor of live displays are rich's.
    """

    def __init__(self, **options: Any) -> None:
        self._is_told = options.get("force_terminal") is not None or os.environ.get("TTY_COMPATIBLE") == "1"
        super().__init__(**options)

    @property
    def is_terminal(self) -> bool:
        """Whether lines can be redrawn.

        FORCE_COLOR does not say so, which notebooks and CI set for all that they start: their logs would get a line for
        each frame of a bar.
        """
        return super().is_terminal and (self._is_told or self.file.isatty())

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable`, with escaped text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error, as `print` does, instead of a `SystemExit`.

        A run would take that for one of its train function.
        """
        raise  # noqa: PLE0704 - rich calls this while it handles the error
