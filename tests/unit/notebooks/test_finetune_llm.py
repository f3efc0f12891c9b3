"""The notebook on fine-tuning runs from top to bottom, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.notebook import executed


# Over a minute of CPU. docs/llm.md and the tests of llm, which use the same parts, run by default.
@pytest.mark.variation
@pytest.mark.timeout(900)
def test_finetune_llm_runs(tmp_path: Path) -> None:
    done = executed("finetune_llm", tmp_path, timeout_s=600)
    text = done.text
    assert float(re.search(r"fill ([\d.]+)", text)[1]) > 0.95
    assert "workers: [2, 1, 3]" in text
    perplexities = [float(found) for found in re.findall(r"perplexity ([\d.]+)", text)]
    assert perplexities[-1] < perplexities[0] / 1.3
    assert int(re.findall(r"exact answers (\d+)%", text)[-1]) >= 30
    (rows,) = (html for html in done.pages if "<u style" in html)
    assert rows.count("<p ") == 3
    assert len(re.findall(r"before: .*\n +after: .*\n +expected: ", text)) == 3
