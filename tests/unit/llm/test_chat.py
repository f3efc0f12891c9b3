from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from forebay.errors import InvalidOption
from forebay.llm.chat import (
    InvalidConversation,
    check_messages,
    check_train_on,
    encode,
    encode_marked,
    has_generation_marks,
    prompt_and_completion,
    render,
)

TWO_TURNS = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Add (1,2)"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "Copy (fox,sun)"},
    {"role": "assistant", "content": "fox,sun"},
]
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ message['content'] }}<|im_end|>"
    "{% endif %}{{ '\n' }}{% endfor %}"
)
FORGETFUL = (
    "{% for message in messages %}{% if message['role'] == 'user' or loop.last %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
)


def targets(tokenizer: Any, messages: Any, train_on: Any) -> str:
    (document,) = encode(tokenizer, [render(tokenizer, messages, train_on)])
    assert document.ids.dtype == np.int32 and len(document.ids) == len(document.is_target)
    return str(tokenizer.decode(document.ids[document.is_target]))


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [("assistant", "3<|im_end|>fox,sun<|im_end|>"), ("last", "fox,sun<|im_end|>")],
)
def test_targets_are_the_answers_with_their_end(tokenizer: Any, train_on: str, expected: str) -> None:
    assert targets(tokenizer, TWO_TURNS, train_on) == expected


def test_all_tokens_may_be_targets(tokenizer: Any) -> None:
    text = targets(tokenizer, TWO_TURNS, "all")
    assert text == tokenizer.apply_chat_template(TWO_TURNS, tokenize=False)


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
def test_marks_of_the_template_give_the_same_targets(tokenizer: Any, train_on: Any) -> None:
    marked = copy.deepcopy(tokenizer)
    marked.chat_template = MARKED
    assert has_generation_marks(marked) and not has_generation_marks(tokenizer)
    found = encode_marked(marked, TWO_TURNS, train_on)
    (expected,) = encode(tokenizer, [render(tokenizer, TWO_TURNS, train_on)])
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.is_target, expected.is_target)


def test_template_that_drops_earlier_answers_is_refused_with_the_remedies(tokenizer: Any) -> None:
    forgetful = copy.deepcopy(tokenizer)
    forgetful.chat_template = FORGETFUL
    with pytest.raises(InvalidOption, match=r'first turns.*turn 2.*train_on="all", or give template='):
        render(forgetful, TWO_TURNS, "assistant")
    assert render(forgetful, TWO_TURNS, "all").targets is None


def test_completion_is_the_target(tokenizer: Any) -> None:
    (document,) = encode(tokenizer, [prompt_and_completion("Add (1,2)\n", "3<|im_end|>")])
    assert tokenizer.decode(document.ids[document.is_target]) == "3<|im_end|>"
    assert tokenizer.decode(document.ids) == "Add (1,2)\n3<|im_end|>"


def test_token_across_the_border_is_no_target(tokenizer: Any) -> None:
    (document,) = encode(tokenizer, [prompt_and_completion("Rev", "erse (fox")])
    assert tokenizer.decode(document.ids[document.is_target]) == " (fox"


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ("hello", r"the messages are 'hello', not a list of \{role, content\}"),
        (None, "None, not a list"),
        ([], "not a list"),
        ([{"role": "user"}], r"message 0 is \{'role': 'user'\}, not \{role, content\}"),
        ([{"role": "robot", "content": "x"}], "the role 'robot', not one of system, developer, user"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}], "message 1 has the content ' '"),
        ([{"role": "user", "content": None}], "message 0 has the content None"),
        ([{"role": "user", "content": "x"}], "no message is the assistant's"),
        ([{"role": "assistant", "content": "x"}], "the first message is the assistant's"),
    ],
)
def test_what_is_no_conversation_is_named(messages: Any, found: str) -> None:
    with pytest.raises(InvalidConversation, match=found):
        check_messages(messages)


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(InvalidOption, match="train_on='user' is unknown. Choose one of 'assistant', 'last', 'all'"):
        check_train_on("user")
