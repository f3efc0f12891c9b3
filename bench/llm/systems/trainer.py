"""Trainer of transformers: documents padded to the longest of a pass, "grouped" by length, or Forebay's packed "rows".

Tokens come from `datasets.map`, whose cache a second run finds.

https://huggingface.co/docs/transformers/main_classes/trainer
https://huggingface.co/docs/datasets/cache
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from datasets import load_dataset

from bench.llm.probe import Probe
from bench.llm.setting import LlmSetting


def run(setting: LlmSetting, answer: str) -> None:
    Probe(setting, answer).watch(transformers.LlamaForCausalLM, transformers.LlamaModel)
    tokenizer = transformers.AutoTokenizer.from_pretrained(setting.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(setting.model, dtype=torch.float32)
    padded = {"rows": setting.step_documents, "of_pass": setting.pass_documents}
    if setting.variant == "rows":
        padded = {"rows": setting.step_rows, "of_pass": setting.pass_rows}
    order = {"": "random", "grouped": "group_by_length", "rows": "sequential"}[setting.variant]
    arguments = transformers.TrainingArguments(**setting.common(**padded), train_sampling_strategy=order)
    given: dict[str, Any] = {"model": model, "args": arguments, "processing_class": tokenizer}
    if setting.variant == "rows":
        given |= {"train_dataset": PackedRows(setting.rows), "data_collator": stack}
    else:
        data = load_dataset("json", data_files=setting.chats, split="train", cache_dir=f"{setting.work}/datasets")
        tokens = data.map(partial(tokenized, tokenizer, setting.seq_len), remove_columns=data.column_names)
        collator = transformers.DataCollatorForSeq2Seq(tokenizer, padding="longest")
        given |= {"train_dataset": tokens, "data_collator": collator}
    transformers.Trainer(**given).train(resume_from_checkpoint=setting.resume)


def tokenized(tokenizer: Any, seq_len: int, row: dict[str, Any]) -> dict[str, list[int]]:
    """Ids and labels of a chat: the answers and their ends are learned."""
    found = tokenizer.apply_chat_template(
        row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, marks = found["input_ids"][:seq_len], found["assistant_masks"][:seq_len]
    labels = [each if mark else -100 for each, mark in zip(ids, marks, strict=True)]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}


class PackedRows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Forebay's packed rows as a dataset of PyTorch."""

    def __init__(self, path: str) -> None:
        with np.load(path) as arrays:
            self._arrays = {name: torch.from_numpy(arrays[name]).long() for name in arrays.files}

    def __len__(self) -> int:
        return len(self._arrays["input_ids"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index] for name, values in self._arrays.items()}


def stack(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Batch of equally long rows."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
