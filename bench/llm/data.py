"""Chats of the bench, the model that all systems start from, and the rows that some of them share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import forebay as fb
from bench.llm.sizes import SIZES
from forebay.llm.source.token_source import VERSION
from forebay.llm.source.tokenizers import TokenizerSpec, train_tokenizer
from forebay.testing.data.chats import made_up_chats

KINDS = ("usual", "heavy")
HELD_OUT = 400
SEQ_LEN = 512

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ message['content'] }}<|im_end|>"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML with the marks that TRL needs. Its text and targets equal Forebay's "chatml"."""

Chat = list[dict[str, str]]


@dataclass(frozen=True)
class LlmData:
    """Files of one kind of chats. `padded_fill` is the fill of passes that are padded to their longest document."""

    chats: Path
    held_out: Path
    rows: Path
    held_out_rows: Path
    mean_tokens: float
    padded_fill: float
    fill: float


def turns_of(kind: str, rng: np.random.Generator) -> int:
    """Questions of a chat: 1 to 16, most around 4, or 1 and, in every 12th chat, 19."""
    if kind == "usual":
        return int(np.clip(np.round(rng.lognormal(np.log(4), 0.4)), 1, 16))
    return 19 if rng.random() < 1 / 12 else 1


def chats_of(kind: str, seed: int) -> Iterator[Chat]:
    """Made-up chats without end."""
    rng = np.random.default_rng(seed)
    pairs = _pairs(seed)
    while True:
        yield [message for pair in islice(pairs, turns_of(kind, rng)) for message in pair]


def _pairs(seed: int) -> Iterator[list[Any]]:
    for messages in made_up_chats(seed):
        said = [each for each in messages if each["role"] != "system"]
        yield from (said[at : at + 2] for at in range(0, len(said), 2))


def write_model(folder: Path) -> int:
    """Write the model and its tokenizer, unless they are there. Returns the id of the token that pads."""
    if not (folder / "tokenizer.json").exists():
        texts = (each["content"] for kind in KINDS for chat in islice(chats_of(kind, 0), 500) for each in chat)
        tokenizer = train_tokenizer(texts, TokenizerSpec())
        tokenizer.chat_template = TEMPLATE
        torch.manual_seed(0)
        config = transformers.LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=False, **SIZES)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    pad: int = transformers.AutoTokenizer.from_pretrained(folder).pad_token_id
    return pad


def write_data(folder: Path, model: Path, kind: str, chats: int, pass_documents: int) -> LlmData:
    """Write the chats of one kind, the held-out ones, and both as packed rows, unless they are there."""
    place = folder / f"llm-{kind}-{chats}-{VERSION}"  # another packing gives other rows
    facts = place / "facts.json"
    if not facts.exists():
        place.mkdir(parents=True, exist_ok=True)
        found = list(islice(chats_of(kind, 1), chats + HELD_OUT))
        _write(place / "held_out.jsonl", found[:HELD_OUT])
        _write(place / "chats.jsonl", found[HELD_OUT:])
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in found[HELD_OUT:]]
        lengths = [min(len(ids), SEQ_LEN) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        _pack(place / "held_out.jsonl", model, place, place / "held_out.npz")
        fill = _pack(place / "chats.jsonl", model, place, place / "rows.npz")
        means = {"mean_tokens": float(np.mean(lengths)), "padded_fill": padded_fill(lengths, pass_documents)}
        facts.write_text(json.dumps(means | {"fill": fill}))
    names = {"chats": "chats.jsonl", "held_out": "held_out.jsonl", "rows": "rows.npz", "held_out_rows": "held_out.npz"}
    return LlmData(**{name: place / file for name, file in names.items()}, **json.loads(facts.read_text()))


def padded_fill(lengths: list[int], of_pass: int) -> float:
    """Share of tokens that are not padding, where passes of random documents are padded to their longest."""
    shuffled = np.random.default_rng(0).permutation(lengths)
    passes = shuffled[: len(shuffled) // of_pass * of_pass].reshape(-1, of_pass)
    return float(passes.sum() / (passes.max(axis=1) * of_pass).sum())


def _write(path: Path, chats: list[Chat]) -> None:
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))


def _pack(chats: Path, model: Path, folder: Path, target: Path) -> float:
    """Write packed rows in the order of Forebay's first epoch. Returns their fill."""
    source = fb.llm.TokenSource(str(chats), fb.llm.tokenizer(str(model), template="chatml"), seq_len=SEQ_LEN)
    tokens = fb.llm.prepared_tokens(fb.prepare(source, into=str(folder / "prepared"), processes=1))
    plan = fb.build_plan(tokens.prepared.manifest, seed=7)
    parts = []
    with fb.Loader(plan, fb.llm.token_rows(), None, global_batch=8) as loader:
        parts = [fb.llm.unpack(batch["tokens"].clone()) for batch in loader]
    names = ("input_ids", "labels", "position_ids")
    arrays = {name: torch.cat([getattr(part, name) for part in parts]).to(torch.int32).numpy() for name in names}
    np.savez(target, **arrays)
    return tokens.counts.fill(SEQ_LEN)
