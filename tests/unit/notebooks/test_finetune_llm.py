"""The notebook on fine-tuning runs from top to bottom, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "finetune_llm.ipynb"


# Over a minute of CPU. docs/llm.md and the tests of llm, which use the same parts, run by default.
@pytest.mark.variation
@pytest.mark.timeout(900)
def test_finetune_llm_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed: they go stale"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert float(re.search(r"fill ([\d.]+)", text)[1]) > 0.95
    assert "workers: [2, 1, 3]" in text
    perplexities = [float(found) for found in re.findall(r"perplexity ([\d.]+)", text)]
    assert perplexities[-1] < perplexities[0] / 1.3
    assert int(re.findall(r"exact answers (\d+)%", text)[-1]) >= 30
    (rows,) = (html for output in outputs if "<u style" in (html := output.get("data", {}).get("text/html", "")))
    assert rows.count("<p ") == 3
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert len(re.findall(r"before: .*\n +after: .*\n +expected: ", text)) == 3
