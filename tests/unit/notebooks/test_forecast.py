"""The notebook on forecasts runs from top to bottom, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "forecast.ipynb"


@pytest.mark.variation  # docs/sequences.md and jobs/forecast.py, which use the same parts, run by default
def test_forecast_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed: they go stale"
    NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    learned, repeated = (float(re.search(rf"{name} ([\d.]+)", text)[1]) for name in ("error", "repeated"))
    assert learned < repeated / 2
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
