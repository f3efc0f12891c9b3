"""The quickstart notebook runs from top to bottom, as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "quickstart.ipynb"


def test_quickstart_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed: they go stale"
    # Else the client waits 2.5 s for a kernel that has nothing left to do.
    options = {"timeout": 180, "shutdown_kernel": "immediate"}
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, **options).execute()
    text = "".join(
        output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )
    assert "epoch 1: 16000 rows, 0 Parquet opens" in text
    assert "next position 3000" in text
    shown = notebook.cells[-2].outputs[-1]["data"]["text/html"]
    assert 'class="forebay"' in shown and "Where the time went" in shown
