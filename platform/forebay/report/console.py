"""Output to terminals that foreign text cannot steer."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from forebay.runtime.formatting import printable


class SafeConsole(Console):
    """Console of rich that shows control characters instead of sending them.

    Only the text of what is rendered is escaped, see `printable`: colors and the cursor of live displays are rich's.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable`, with escaped text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
