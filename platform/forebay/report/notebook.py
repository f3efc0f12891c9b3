"""Output in a cell of a notebook."""

from __future__ import annotations

import sys
from typing import Any


def is_notebook() -> bool:
    """Return whether this process runs a notebook.

    A notebook has imported IPython.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


class CellOutput:
    """HTML of the present cell, replaced as a whole."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str) -> None:
        """Show `html` instead of what was shown before."""
        from IPython.display import HTML, display  # noqa: PLC0415 - an extra: only notebooks have it

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))
