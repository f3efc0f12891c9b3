"""A small tokenizer, trained once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from forebay.llm.source.tokenizers import TokenizerSpec, train_tokenizer
from forebay.testing.data.chats import made_up_chats


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Tokenizer trained on 200 made-up chats, with the ChatML template."""
    chats = itertools.islice(made_up_chats(0), 200)
    return train_tokenizer((each["content"] for messages in chats for each in messages), TokenizerSpec())
