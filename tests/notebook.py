"""Notebooks are executed as a reader would: from top to bottom, headless, in an empty folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
INSTALL = """\
# On Colab: set the repository, or upload a wheel of Forebay (`make dist` makes one) beside this notebook.
REPOSITORY = ""  # git+https://...

import importlib.util
from pathlib import Path

if importlib.util.find_spec("forebay") is None:
    wheels = [path.absolute().as_uri() for path in sorted(Path.cwd().glob("forebay-*.whl"))]
    found = [*wheels, *([REPOSITORY] if REPOSITORY else [])]
    assert found, "Forebay is not installed: set REPOSITORY, or upload a wheel"
    %pip install --quiet"""
"""Begin of the first cell of code, the same in all notebooks. Packages follow."""


@dataclass(frozen=True)
class Executed:
    """A notebook that has run."""

    cells: list[Any]

    @property
    def outputs(self) -> list[Any]:
        """Outputs of all cells, in order."""
        return [output for cell in self.cells if cell.cell_type == "code" for output in cell.outputs]

    @property
    def text(self) -> str:
        """Printed text."""
        return "".join(output.get("text", "") for output in self.outputs)

    @property
    def pages(self) -> list[str]:
        """HTML that was shown."""
        return [html for output in self.outputs if (html := output.get("data", {}).get("text/html"))]

    @property
    def num_pictures(self) -> int:
        """Number of drawn pictures: PNG, or SVG inside of a page."""
        drawn = sum("image/png" in output.get("data", {}) for output in self.outputs)
        return drawn + sum(page.count("<svg") for page in self.pages)


def read(name: str) -> Any:
    """Notebook `name` as it is in the repository."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def executed(name: str, folder: Path, timeout_s: float, **options: object) -> Executed:
    """Run a notebook in `folder`. Whatever it is about, it shows progress and a picture."""
    notebook = read(name)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=timeout_s, resources=resources, **options).execute()
    done = Executed(notebook.cells)
    assert re.search(r"epoch 1/\d+ took|\b2 finished|\bsucceeded", done.text + "".join(done.pages)), "no progress"
    assert done.num_pictures > 0, "no picture"
    return done
