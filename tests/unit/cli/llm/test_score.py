from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from forebay.llm.models import ModelSpec
from forebay.llm.source.tokenizers import TokenizerSpec, train_tokenizer

TEXTS = [f"question number {number}" for number in range(12)]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    tokenizer = train_tokenizer(TEXTS, TokenizerSpec(vocab_size=300))
    torch.manual_seed(5)
    model: Any = ModelSpec(name="tiny", vocab_size=len(tokenizer)).build()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def words(model_folder: Path, tmp_path: Path) -> Callable[..., list[str]]:
    pq.write_table(pa.table({"prompt": TEXTS, "id": range(12)}), tmp_path / "questions.parquet")

    def make(**options: object) -> list[str]:
        given = {"model": model_folder, "data": tmp_path / "questions.parquet", "to": tmp_path / "answers"}
        return [f"{name}={value}" for name, value in (given | {"shard_rows": 5, "max_tokens": 3} | options).items()]

    return make


def test_answers_are_written_and_counted(forebay: Callable[..., Any], words: Callable[..., list[str]]) -> None:
    said = forebay("llm", "score", *words(keep="id,"), "--json")
    assert said.code == 0, said.err
    facts = json.loads(said.out)
    assert (facts["rows"], facts["rows_scored"], facts["errors"]) == (12, 12, 0)
    assert "12 of 12 rows" in said.err
    again = json.loads(forebay("llm", "score", *words(keep="id,"), "--json").out)
    assert (again["rows_scored"], again["rows_before"]) == (0, 12)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"promt": "x"}, "forebay llm score has no parameter 'promt'. Did you mean 'prompt'?"),
        pytest.param({"prompt": "question"}, "no column 'question'", marks=pytest.mark.variation),
        ({"temperature": "hot"}, "temperature=hot is not of type float"),
        pytest.param({"engine": "none"}, "engine='none' is unknown", marks=pytest.mark.variation),
    ],
)
def test_bad_input(
    forebay: Callable[..., Any], words: Callable[..., list[str]], wrong: dict[str, str], says: str
) -> None:
    said = forebay("llm", "score", *words(**wrong))
    assert said.code == 2
    assert says in said.err


def test_missing_engine_is_named_with_the_line_that_installs_it(
    forebay: Callable[..., Any], words: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    said = forebay("llm", "score", *words(engine="vllm"))
    assert said.code == 3
    assert 'needs the package vllm: pip install "vllm' in " ".join(said.err.split())
    assert not (tmp_path / "answers").exists()


def test_another_plan_is_refused_with_both(forebay: Callable[..., Any], words: Callable[..., list[str]]) -> None:
    assert forebay("llm", "score", *words()).code == 0
    said = forebay("llm", "score", *words(max_tokens=4))
    assert said.code == 3
    assert "holds the output of plan" in said.err and '"max_tokens": 4' in said.err


@pytest.mark.variation
def test_context_overflow_is_an_error_of_the_row(
    forebay: Callable[..., Any], words: Callable[..., list[str]], tmp_path: Path
) -> None:
    pq.write_table(pa.table({"prompt": ["short", "x y " * 4000]}), tmp_path / "long.parquet")
    facts = json.loads(forebay("llm", "score", *words(data=tmp_path / "long.parquet"), "--json").out)
    assert (facts["rows_scored"], facts["errors"]) == (2, 1)


def test_evaluations(forebay: Callable[..., Any], words: Callable[..., list[str]], tmp_path: Path) -> None:
    model, data = words()[:2]
    said = forebay("llm", "evaluate", "metric=perplexity", model, data, "--json")
    assert said.code == 0, said.err
    facts = json.loads(said.out)
    assert facts["documents"] == 12 and facts["perplexity"] > 1
    assert forebay("llm", "score", *words(keep="prompt,")).code == 0
    matched = json.loads(
        forebay(
            "llm", "evaluate", "metric=exact_match", f"answers={tmp_path / 'answers'}", "expected=prompt", "--json"
        ).out
    )
    assert (matched["rows"], matched["matches"]) == (12, 0)
    unknown = forebay("llm", "evaluate", "metric=bleu")
    assert unknown.code == 2 and "Choose one of metric=perplexity, metric=exact_match, metric=win_rate" in unknown.err


def test_table_fits_80_columns(
    forebay: Callable[..., Any], words: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = forebay("llm", "score", *words())
    assert said.code == 0, said.err
    assert "requests/s" in said.out and "out tokens/s" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    assert "<td>here</td><td>12</td>" in (tmp_path / "answers" / "scores.html").read_text()


def test_batch_sizes_are_measured_without_answers(
    forebay: Callable[..., Any], words: Callable[..., list[str]], tmp_path: Path
) -> None:
    said = forebay("llm", "score", *words(max_tokens=1), "--sweep-batch", "16,64", "--json")
    assert said.code == 0, said.err
    facts = json.loads(said.out)
    assert [each["batch"] for each in facts["batches"]] == [16, 64]
    assert [each["rows"] for each in facts["batches"]] == [64, 256]
    assert [path.name for path in (tmp_path / "answers").iterdir()] == ["batches.html"]
    assert forebay("llm", "score", *words(), "--sweep-batch", "0").code == 3
    assert forebay("llm", "score", *words(), "--sweep-batch", "a").code == 2
