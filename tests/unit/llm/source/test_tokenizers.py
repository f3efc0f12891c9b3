from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.llm.chat.named import CHATML
from forebay.llm.source.tokenizers import (
    TokenizerSpec,
    check_sizes,
    from_text,
    load_folder,
    load_tokenizer,
    to_text,
    train_tokenizer,
)
from forebay.llm.source.tokenizers import tokenizer as tokenizer_of


@pytest.fixture
def folder(tokenizer: Any, tmp_path: Path) -> Path:
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_trained_tokenizer_comes_back_from_its_text(tokenizer: Any) -> None:
    again = from_text(to_text(tokenizer))
    text = "<|im_start|>user\nCopy (fox,sun) é<|im_end|>\n"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.decode(again(text)["input_ids"]) == text
    assert (again.pad_token, again.eos_token, again.chat_template) == ("<|endoftext|>", "<|im_end|>", CHATML)


def test_training_depends_on_the_text_alone() -> None:
    texts = ["a fox and a hen", "the fox"] * 5
    assert to_text(train_tokenizer(texts, TokenizerSpec())) == to_text(train_tokenizer(texts, TokenizerSpec()))
    assert len(train_tokenizer(texts, TokenizerSpec(vocab_size=260))) == 260


def test_folder_is_loaded_and_identified_by_its_files(tokenizer: Any, folder: Path) -> None:
    found = load_folder(str(folder))
    assert found("Copy (fox)")["input_ids"] == tokenizer("Copy (fox)")["input_ids"]
    spec = tokenizer_of(str(folder))
    before = spec.identity()
    (folder / "model.safetensors").write_bytes(b"weights")
    assert spec.identity() == before
    assert tokenizer_of(str(folder), template="chatml").identity() != before
    (folder / "tokenizer_config.json").write_text("{}")
    assert spec.identity() != before


def test_pad_is_the_end_token_where_there_is_none(tokenizer: Any, folder: Path, messages: list[str]) -> None:
    found = load_folder(str(folder))
    found.pad_token = None
    found.save_pretrained(folder)
    assert load_folder(str(folder), template="{{ 1 }}").pad_token_id == tokenizer.eos_token_id
    assert any("no pad token: its end token '<|im_end|>' pads" in message for message in messages)


def test_folders_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidOption, match=r"has no tokenizer: it needs tokenizer.json .* holds no files"):
        tokenizer_of(str(tmp_path / "empty"))
    with pytest.raises(InvalidOption, match="template='llama' is neither a known template"):
        tokenizer_of(str(folder), template="llama")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InvalidOption, match="cannot be loaded"):
        load_folder(str(folder))


def test_nobody_is_asked_to_run_the_code_of_a_tokenizer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = folder / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": [None, "code.Own"]}, "tokenizer_class": "Own"}
    config.write_text(json.dumps(json.loads(config.read_text()) | own))
    (folder / "code.py").write_text("raise SystemExit('it ran')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(InvalidOption, match=r"(?s)\(ValueError: .* Code in a model's folder is never run") as refused:
        load_folder(str(folder))
    assert "it ran" not in str(refused.value)


def test_tokenizer_that_is_not_trained_yet_cannot_be_loaded() -> None:
    with pytest.raises(InvalidOption, match="is trained on data, and was not yet"):
        load_tokenizer(TokenizerSpec())


def test_tokenizer_must_not_be_larger_than_the_embedding() -> None:
    check_sizes(300, 300, "tiny")
    with pytest.raises(InvalidOption, match="the tokenizer has 301 entries, and the model tiny has embeddings for 300"):
        check_sizes(301, 300, "tiny")


def test_vocabulary_holds_all_bytes() -> None:
    with pytest.raises(InvalidOption, match="vocab_size=100"):
        TokenizerSpec(vocab_size=100)
