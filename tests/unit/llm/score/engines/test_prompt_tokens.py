"""Prompts of tokens, and the positions that a prompt may have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay.llm.score.engines.engine import Prompt, Sampling, TokenPrompt
from forebay.llm.score.engines.hf import HfEngine, HfEngineSpec
from forebay.llm.source.tokenizers import import_transformers, load_folder


@pytest.fixture(scope="module")
def short(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> HfEngine:
    """A GPT-2 of 24 positions, which its config.json calls `n_positions`."""
    folder, tokenizer = tmp_path_factory.mktemp("short"), load_folder(str(model_folder))
    torch.manual_seed(3)
    transformers = import_transformers()
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=24, n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return HfEngineSpec(model=str(folder)).open()


def test_tokens_are_the_text_that_they_encode(short: HfEngine, model_folder: Path) -> None:
    tokenizer: Any = load_folder(str(model_folder))
    ids = tuple(tokenizer("a question")["input_ids"])
    assert short.generate([Prompt(row=1, content=TokenPrompt(ids))], Sampling(max_tokens=5)) == short.generate(
        [Prompt(row=1, content="a question")], Sampling(max_tokens=5)
    )
    (whole,) = short.log_likelihood([Prompt(row=0, content="a question")])
    (given,) = short.log_likelihood([Prompt(row=0, content=TokenPrompt(ids, len(ids)))])
    assert given == whole
    (last,) = short.log_likelihood([Prompt(row=0, content=TokenPrompt(ids, 1))])
    assert last.output_tokens == 1 and (last.log_likelihood or 0.0) > (whole.log_likelihood or 0.0)


def test_tokens_that_cannot_be_asked_about_have_an_error(short: HfEngine) -> None:
    many = len(short._tokens.tokenizer)
    wrong = [TokenPrompt(()), TokenPrompt((1, many)), TokenPrompt((-1, 2))]
    for answer in short.generate([Prompt(row=0, content=each) for each in wrong], Sampling()):
        assert answer.error is not None
    for prompt in (
        Prompt(row=0, content=TokenPrompt((1, 2), 1), completion="text"),
        Prompt(row=0, content=TokenPrompt((1, 2), 1), with_end=True),
        Prompt(row=0, content=TokenPrompt((1, 2))),
        *(Prompt(row=0, content=TokenPrompt(each.ids, 1)) for each in wrong),
    ):
        (answer,) = short.log_likelihood([prompt])
        assert answer.error is not None, prompt


def test_positions_are_the_models_by_any_name(short: HfEngine) -> None:
    """The last token of a text is predicted only, so a text may have one token more than there are positions."""
    prompts = [Prompt(row=0, content=TokenPrompt(tuple(range(5, 5 + length)), length)) for length in (24, 25, 26)]
    fits, just_fits, too_long = short.log_likelihood(prompts)
    assert fits.error is None and just_fits.error is None
    assert (just_fits.log_likelihood or 0.0) < (fits.log_likelihood or 0.0) < 0 and math.isfinite(
        just_fits.log_likelihood or 0
    )
    assert "26 tokens, and the model has 24 positions" in (too_long.error or "")
    full, over = short.generate([Prompt(row=0, content=TokenPrompt((5,) * length)) for length in (23, 24)], Sampling())
    assert (full.output_tokens, full.finish_reason) in {(1, "length"), (1, "stop")}
    assert "24 positions" in (over.error or "")


def test_a_stop_text_may_be_a_special_token(short: HfEngine) -> None:
    tokenizer: Any = short._tokens.tokenizer
    prompts = [Prompt(row=row, content="a") for row in range(100)]
    free = short.generate(prompts, Sampling(max_tokens=20, temperature=30.0))
    stop = "<|im_start|>"
    assert stop in tokenizer.get_vocab()
    held = short.generate(prompts, Sampling(max_tokens=20, temperature=30.0, stop=(stop,)))
    ended = [(one, other) for one, other in zip(held, free, strict=True) if one.output_tokens < other.output_tokens]
    assert ended
    assert all(one.finish_reason == "stop" and (other.text or "").startswith(one.text or "") for one, other in ended)
