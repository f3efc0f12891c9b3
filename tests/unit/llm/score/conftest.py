"""A tiny model in a folder, made once, and rows to score with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from forebay.llm.models import ModelSpec
from forebay.llm.score.request import ScoreRequest
from forebay.llm.source.tokenizers import TokenizerSpec, train_tokenizer
from forebay.testing.data.chats import made_up_chats

ROWS = 48


@pytest.fixture(scope="session")
def chats() -> list[list[Any]]:
    return [list(messages) for messages in itertools.islice(made_up_chats(3), 200)]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, chats: list[list[Any]]) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train_tokenizer((each["content"] for turns in chats for each in turns), TokenizerSpec(vocab_size=400))
    torch.manual_seed(5)
    model: Any = ModelSpec(name="tiny", vocab_size=len(tokenizer)).build()
    model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def questions(tmp_path: Path, chats: list[list[Any]]) -> Path:
    """Parquet files of 48 rows in row groups of 7: texts of many lengths, the conversations, and a source."""
    texts = [" ".join(turn["content"] for turn in turns)[: 5 + 3 * number] for number, turns in enumerate(chats)]
    for number, rows in enumerate((range(30), range(30, ROWS))):
        table = pa.table(
            {
                "id": [f"row-{row}" for row in rows],
                "question": [texts[row] for row in rows],
                "messages": [chats[row] for row in rows],
            }
        )
        (tmp_path / "questions").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "questions" / f"{number}.parquet", row_group_size=7)
    return tmp_path / "questions"


@pytest.fixture
def request_of(model_folder: Path, questions: Path, tmp_path: Path) -> Callable[..., ScoreRequest]:
    """Function that makes a request of short answers, in shards of 10 rows. Keywords replace or add some."""

    def make(**options: Any) -> ScoreRequest:
        given = {"model": str(model_folder), "data": str(questions), "to": str(tmp_path / "answers")}
        short = {"prompt": "question", "shard_rows": 10, "max_tokens": 6, "temperature": 0.8, "seed": 3}
        if "template" in options:
            del short["prompt"]
        return ScoreRequest(**(given | short | options))

    return make


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[[Mapping[str, Sequence[Any]]], str]:
    """Function that writes columns to a Parquet file."""

    def write(columns: Mapping[str, Sequence[Any]]) -> str:
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table(dict(columns)), path)
        return str(path)

    return write
