"""Tokenizers with the special tokens of a template."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from forebay.llm.chat.named import template_named

_TOKENS = re.compile(
    r"<\|[^|<>'\s]+\|?>|<\uff5c[^\uff5c]+\uff5c>|<(?:start|end)_of_turn>|</?think>|\[/?[A-Z_]+\]|<sop>|<[a-z_]+\|>"
)
ROLES = ("system", "user", "assistant")


@pytest.fixture(scope="session")
def tokenizer_for() -> Callable[[str], Any]:
    """`tokenizer_for(template)`: a tokenizer of bytes, with the tokens that the template writes."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    def make(template: str) -> Any:
        text = template if "{" in template else template_named(template)
        special = {*_TOKENS.findall(text), "<s>", "</s>", "<pad>", *(f"<|{role}|>" for role in ROLES)}
        names = sorted(special) + sorted(pre_tokenizers.ByteLevel.alphabet())
        made = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        made.add_special_tokens(sorted(special))
        found = transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
        )
        found.chat_template = text
        return found

    return make
