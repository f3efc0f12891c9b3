"""Pairs of answers and answers with labels of unequal lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forebay as fb
from forebay import llm
from forebay.testing.data.chats import write_labels, write_pairs

SEQ_LEN = 192


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> llm.PreparedTokens:
    folder = tmp_path_factory.mktemp("pairs")
    made = write_pairs(folder, pairs=60, held_out=5)
    rows = [json.loads(line) for line in made.training.read_text().splitlines()]
    # One answer that is never preferred: a few steps suffice to learn it.
    (folder / "rows.jsonl").write_text("".join(json.dumps(row | {"rejected": "dont know"}) + "\n" for row in rows))
    return prepared(folder / "rows.jsonl")


@pytest.fixture(scope="session")
def labels(tmp_path_factory: pytest.TempPathFactory) -> llm.PreparedTokens:
    return prepared(write_labels(tmp_path_factory.mktemp("labels"), pairs=24, held_out=2).training)


def prepared(file: Path) -> llm.PreparedTokens:
    source = llm.TokenSource(str(file), llm.tokenizer("tiny"), seq_len=SEQ_LEN, overflow="drop")
    return llm.prepared_tokens(fb.prepare(source, into=str(file.parent / "into")))
