"""Answers of a model during training: which prompts, and what greedy decoding gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forebay as fb
from forebay import llm
from forebay.llm.packing import START, TARGET
from forebay.llm.samples import documents_of, greedy, held_out_prompts, prompt_of
from forebay.testing.data.chats import write_chats, write_pairs


def row(*documents: tuple[int, int]) -> np.ndarray:
    """A row of documents, each of (prompt, answer) tokens, with ids that count."""
    words = []
    for prompt, answer in documents:
        begin = len(words)
        words += [each | (TARGET if each - begin >= prompt else 0) for each in range(begin, begin + prompt + answer)]
        words[begin] |= START
    return np.array(words, dtype=np.int32)


def test_prompt_is_what_comes_before_the_first_answer() -> None:
    first, second, text = documents_of(row((3, 2), (2, 1), (0, 9)))
    found = prompt_of(first)
    assert found is not None
    assert (found.ids, found.wanted) == ((0, 1, 2), (3, 4))
    found = prompt_of(second)
    assert found is not None
    assert (found.ids, found.wanted) == ((5, 6), (7,))
    found = prompt_of(text)
    assert found is not None
    assert (found.ids, found.wanted) == ((8, 9, 10, 11), (12, 13, 14, 15, 16))
    assert prompt_of(row((4, 0))) is None, "nothing is an answer"


@pytest.mark.parametrize("attn", ["documents", "sdpa", "eager"])
@pytest.mark.parametrize("chunk", [0, 4])
def test_greedy_decoding_is_that_of_transformers(tokenizer: Any, attn: Any, chunk: int) -> None:
    spec = llm.ModelSpec(name="tiny", vocab_size=len(tokenizer), attn=attn)
    recipe = llm.Recipe(model=spec, loss_chunk=chunk)
    torch.manual_seed(0)
    model = recipe.build_model("cpu")
    prompts = [tokenizer(text)["input_ids"] for text in ("Copy (fox,sun)", "Say", "Copy the words (a,b,c), please")]
    found = greedy(model, recipe, prompts, torch.device("cpu"), new_tokens=6)
    assert model.training
    model.eval()
    torch.manual_seed(0)
    plain = llm.ModelSpec(name="tiny", vocab_size=len(tokenizer), attn="eager").build().eval()
    for prompt, answer in zip(prompts, found, strict=True):
        made = plain.generate(
            torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert made[0, len(prompt) :].tolist() == answer


def test_prompts_of_prepared_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    chats = write_chats(tmp_path / "chats", chats=40, held_out=10)
    source = llm.TokenSource(str(chats.held_out), llm.tokenizer("tiny"), seq_len=128)
    tokens = llm.prepared_tokens(fb.prepare(source, into=str(tmp_path / "into")))
    assert held_out_prompts(tokens, 0) == ()
    found = held_out_prompts(tokens, 3)
    loaded = tokens.tokenizer(llm.tokenizer("tiny"))
    texts = [loaded.decode(each.ids) for each in found]
    assert len(found) == 3
    assert all(text.startswith("<|im_start|>") and text.endswith("<|im_start|>assistant\n") for text in texts)
    assert all(loaded.decode(each.wanted).endswith("<|im_end|>") for each in found)
    assert len(held_out_prompts(tokens, 1000)) < 1000
    assert "samples=1000: " in caplog.text


def test_prompts_of_labels_have_their_own_desired_answer(tmp_path: Path) -> None:
    rows = [{"prompt": f"Say {n}. ", "completion": f"number {n}", "label": n % 2 == 0} for n in range(5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    source = llm.TokenSource(str(tmp_path / "rows.jsonl"), llm.tokenizer("tiny"), seq_len=128, overflow="drop")
    tokens = llm.prepared_tokens(fb.prepare(source, into=str(tmp_path / "into")))
    loaded = tokens.tokenizer(llm.tokenizer("tiny"))
    found = {loaded.decode(each.ids): loaded.decode(each.wanted) for each in held_out_prompts(tokens, 8)}
    assert found == {f"Say {n}. ": f"number {n}<|im_end|>" for n in (0, 2, 4)}


def test_prompts_of_pairs_have_the_preferred_answer(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs", pairs=40)
    source = llm.TokenSource(str(pairs.held_out), llm.tokenizer("tiny"), seq_len=256, overflow="drop")
    tokens = llm.prepared_tokens(fb.prepare(source, into=str(tmp_path / "into")))
    found = held_out_prompts(tokens, 8)
    assert len({each.ids for each in found}) == len(found), "each pair once"
