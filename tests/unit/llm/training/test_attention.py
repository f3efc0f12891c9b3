from __future__ import annotations

import importlib.machinery
import importlib.util

import pytest

from forebay.errors import InvalidOption
from forebay.llm.training.attention import chosen_attention


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash_attn as if it were installed."""
    found = importlib.util.find_spec
    spec = importlib.machinery.ModuleSpec("flash_attn", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "flash_attn" else found(name))


def test_choice_without_flash_attention() -> None:
    assert chosen_attention("auto", has_gpu=False) == "documents"
    assert chosen_attention("auto", has_gpu=True) == "flex_attention"
    assert chosen_attention("eager", has_gpu=True) == "eager"
    with pytest.raises(InvalidOption, match="needs the package flash_attn, which is missing. Install it: pip install"):
        chosen_attention("flash_attention_2", has_gpu=True)
    with pytest.raises(InvalidOption, match="attn='flex_attention' has no backward pass on a CPU"):
        chosen_attention("flex_attention", has_gpu=False)


def test_choice_with_flash_attention(flash: None) -> None:
    assert chosen_attention("auto", has_gpu=True) == "flash_attention_2"
    assert chosen_attention("auto", has_gpu=False) == "documents"
    with pytest.raises(InvalidOption, match="runs on GPUs only"):
        chosen_attention("flash_attention_2", has_gpu=False)
