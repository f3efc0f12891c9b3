"""The code of the page on scoring runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.llm.models import ModelSpec
from forebay.llm.source.tokenizers import TokenizerSpec, train_tokenizer

PAGE = Path(__file__).parents[3] / "docs" / "scoring.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"question {number}" for number in range(70)]
    tokenizer = train_tokenizer(texts, TokenizerSpec(vocab_size=300))
    model: Any = ModelSpec(name="tiny", vocab_size=len(tokenizer)).build()
    model.save_pretrained("models/mine")
    tokenizer.save_pretrained("models/mine")
    pq.write_table(pa.table({"id": range(70), "prompt": texts}), "questions.parquet")
    names: dict[str, Any] = {}
    parts = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec("".join(part for part in parts if "lm_eval" not in part), names)  # its tests: test_harness.py
    assert names["answers"]["id"].to_pylist() == list(range(70))
    assert names["result"].errors == 0
