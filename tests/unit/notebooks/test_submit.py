"""The notebook on submission runs from top to bottom, as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "submit.ipynb"


@pytest.mark.variation("four processes; tests/unit/deploy/client has the same parts")
@pytest.mark.timeout(900)
def test_submit_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed: they go stale"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "epochs 2, loss 0." in text
    assert "submission 1, succeeded" in text
    cards = [html for output in outputs if (html := output.get("data", {}).get("text/html"))]
    assert "<caption>demo</caption>" in cards[0]
    assert "succeeded" in cards[-1]
