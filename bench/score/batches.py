"""Requests and tokens per second over batch sizes, of our engine and of a plain loop over `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from forebay.llm.models import ModelSpec
from forebay.llm.score.engines.engine import Prompt, Sampling
from forebay.llm.score.engines.hf import HfEngineSpec
from forebay.llm.source.tokenizers import load_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRate:
    """Requests per CPU second and output tokens per CPU second of one batch size."""

    batch: int
    requests_per_s: float
    tokens_per_s: float


def prompts_of(data: Path, rows: int) -> list[Prompt]:
    """First questions of the data."""
    table = next(pq.ParquetFile(data).iter_batches(rows, columns=["messages"]))
    questions = [turns[:-1] for turns in table["messages"].to_pylist()]
    return [Prompt(row=row, content=turns) for row, turns in enumerate(questions)]


def short_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """First 24 characters of the last turn of each prompt, as a text to continue."""
    return [Prompt(row=each.row, content=str(each.content[-1]["content"])[:24]) for each in prompts]  # type: ignore[index]


def own_rates(model: Path, prompts: Sequence[Prompt], batches: Sequence[int], max_tokens: int) -> list[BatchRate]:
    """Rates of the hf engine. Small batches answer fewer prompts."""
    found = []
    for batch in batches:
        engine = HfEngineSpec(model=str(model), batch=batch).open()
        some = prompts[: max(64, 8 * batch)]
        sampling = Sampling(max_tokens=max_tokens)

        def answer(engine: Any = engine, some: Any = some, sampling: Any = sampling) -> int:
            return sum(each.output_tokens for each in engine.generate(some, sampling))

        found.append(_rate(batch, len(some), answer))
        engine.close()
    return found


def plain_rates(folder: Path, prompts: Sequence[Prompt], batches: Sequence[int], max_tokens: int) -> list[BatchRate]:
    """Rates of a loop over batches in the order of the data, padded on the left, with `model.generate`."""
    tokenizer = load_folder(str(folder))
    tokenizer.padding_side = "left"
    model: Any = ModelSpec(name=str(folder), vocab_size=0).build().eval()
    found = []
    for batch in batches:
        some = prompts[: max(64, 8 * batch)]

        def answer(some: Sequence[Prompt] = some, batch: int = batch) -> int:
            return sum(
                _generated(model, tokenizer, some[at : at + batch], max_tokens) for at in range(0, len(some), batch)
            )

        found.append(_rate(batch, len(some), answer))
    return found


@torch.inference_mode()
def _generated(model: Any, tokenizer: Any, prompts: Sequence[Prompt], max_tokens: int) -> int:
    turns = [prompt.content for prompt in prompts]
    texts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    inputs.pop("token_type_ids", None)
    made = model.generate(
        **inputs, max_new_tokens=max_tokens, do_sample=False, use_cache=True, pad_token_id=tokenizer.pad_token_id
    )
    return int((made[:, inputs["input_ids"].shape[1] :] != tokenizer.pad_token_id).sum())


def _rate(batch: int, rows: int, answer: Callable[[], int]) -> BatchRate:
    answer()  # caches of torch and of the tokenizer
    began = time.process_time()
    tokens = answer()
    seconds = time.process_time() - began
    return BatchRate(batch=batch, requests_per_s=rows / seconds, tokens_per_s=tokens / seconds)
