"""A tiny model and made-up questions, the same in every run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from forebay.llm.models import tiny_sizes
from forebay.llm.source.tokenizers import TokenizerSpec, import_transformers, train_tokenizer
from forebay.testing.data.chats import made_up_chats

ROW_GROUP_ROWS = 1000


def write_model(folder: Path, **sizes: int) -> None:
    """Seeded Llama of 2 layers and width 64, or other sizes, with a tokenizer of 2,048 entries. Kept if it is there."""
    if (folder / "model.safetensors").exists():
        return
    chats = itertools.islice(made_up_chats(0), 2000)
    tokenizer = train_tokenizer((turn["content"] for turns in chats for turn in turns), TokenizerSpec())
    torch.manual_seed(0)
    transformers = import_transformers()
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(tiny_sizes(len(tokenizer)) | sizes)))
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def write_questions(path: Path, rows: int) -> None:
    """`rows` conversations as Parquet. Kept if they are there."""
    if path.exists():
        return
    chats = [list(turns) for turns in itertools.islice(made_up_chats(1), rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": range(rows), "messages": chats})
    pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS)
