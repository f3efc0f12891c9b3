"""The notebook on sweeps runs from top to bottom, as a reader would run it, with its own Ray."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "sweep.ipynb"


# 45 CPU seconds. The quickstart shows that notebooks run, and tests/ray/sweep has what this one calls.
@pytest.mark.variation
@pytest.mark.timeout(900)  # starting a process takes long on a busy machine
def test_sweep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_off: None) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed: they go stale"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "best auc 0." in text
    assert "the same best trial: True" in text
    shown = [output["data"].get("text/html", "") for output in outputs if "data" in output]
    table = next(html for html in shown if html.startswith("<p><b>click</b>"))
    assert "2 finished" in table
    assert any("<svg" in html for html in shown)
