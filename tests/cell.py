"""A notebook of which this process is the kernel, as far as its output goes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import IPython.display
import pytest


@dataclass
class Cell:
    """Outputs of the present cell, in order."""

    shown: list[str] = field(default_factory=list)

    @classmethod
    def present(cls, monkeypatch: pytest.MonkeyPatch) -> Cell:
        """Make this process a notebook for the length of a test."""
        cell = cls()
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace(kernel=None))
        monkeypatch.setattr(IPython.display, "display", cell._display)
        return cell

    def _display(self, *outputs: Any, display_id: bool = False, **_: object) -> Any:
        begin = len(self.shown)
        self.shown += [_html(each) for each in outputs]

        def update(output: Any) -> None:
            self.shown[begin] = _html(output)

        return SimpleNamespace(update=update) if display_id else None


def _html(output: Any) -> str:
    if hasattr(output, "_repr_mimebundle_"):
        return str(output._repr_mimebundle_((), ())["text/html"])
    return str(output.data)
