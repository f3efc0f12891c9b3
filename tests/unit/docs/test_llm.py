"""The code of the page on language models runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "llm.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)), names)
    assert names["tokens"].counts.documents == 200
    assert names["inputs"].input_ids.shape[1] == 256
    assert int((names["inputs"].labels >= 0).sum()) == int(names["batch"]["targets"].sum())
    job = names["job"]
    assert job.data.num_batches == -(-names["plan"].num_rows // 16)
    assert names["recipe"].build_model("cpu").num_parameters() > 0
