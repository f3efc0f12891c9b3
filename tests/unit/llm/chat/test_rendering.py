from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from forebay.errors import InvalidOption
from forebay.llm.chat.documents import Rendered, check_train_on, encode, prompt_and_completion
from forebay.llm.chat.messages import InvalidConversation, check_messages, conversation_of
from forebay.llm.chat.named import CHATML
from forebay.llm.chat.rendering import render
from forebay.llm.chat.template import chat_template

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
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The header of an answer is written by the pass of the question, as the template of Zephyr does.
BY_LAST_PASS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% if loop.last and add_generation_prompt %}<|im_start|>assistant\n{% endif %}{% endfor %}"
)
NO_PROMPT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
NO_END = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
NO_LOOP = "{{ messages[0].content }}<|im_end|>{{ messages[1].content }}<|im_end|>"
JOINED = "{% set text %}{% for m in messages %} {{ m.content }}<|im_end|> {% endfor %}{% endset %}{{ text | trim }}"
DROPS_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def under(tokenizer: Any, template: str) -> Any:
    """Copy of a tokenizer with another template."""
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


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
    marked = under(tokenizer, MARKED)
    assert chat_template(marked).has_generation and not chat_template(tokenizer).has_generation
    (found,) = encode(marked, [render(marked, TWO_TURNS, train_on)])
    (expected,) = encode(tokenizer, [render(tokenizer, TWO_TURNS, train_on)])
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.is_target, expected.is_target)


def test_marks_are_those_of_transformers(tokenizer: Any) -> None:
    marked = under(tokenizer, MARKED)
    (found,) = encode(marked, [render(marked, TWO_TURNS, "assistant")])
    theirs = marked.apply_chat_template(TWO_TURNS, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    assert found.ids.tolist() == theirs["input_ids"]
    assert found.is_target.tolist() == [bool(each) for each in theirs["assistant_masks"]]


def test_a_header_may_be_written_by_the_pass_before(tokenizer: Any) -> None:
    assert targets(under(tokenizer, BY_LAST_PASS), TWO_TURNS, "assistant") == "3<|im_end|>fox,sun<|im_end|>"


@pytest.mark.parametrize(
    ("template", "error", "found"),
    [
        (FORGETFUL, InvalidConversation, r"leaves out the text of message 0 \(the system's\)"),
        (FORGETFUL.replace("'user'", "'system'"), InvalidConversation, "leaves out the text of message 1"),
        (NO_PROMPT, InvalidOption, r'has no generation prompt, and begins turn 2 .* Set train_on="all", or give templ'),
        (NO_END, InvalidConversation, "turn 2 ends with '3', which is no end token .*the model would never stop"),
        (NO_LOOP, InvalidConversation, "leaves out the text of message 2"),
        (JOINED, InvalidOption, "works on the text of its own turns"),
        ("{{ messages[0].content | nofilter }}", InvalidOption, "the chat template is not Jinja .No filter named"),
        ("{{ 1 + messages }}", InvalidConversation, "the chat template refuses the conversation .unsupported operand"),
        (MARKED.replace("<|im_end|>{% endg", "{% endg"), InvalidConversation, "turn 2 ends with '3', which is no end"),
    ],
)
def test_what_cannot_be_marked_surely_is_refused(tokenizer: Any, template: str, error: Any, found: str) -> None:
    with pytest.raises(error, match=found):
        render(under(tokenizer, template), TWO_TURNS, "assistant")


def test_thinking_of_the_last_answer_is_never_lost(tokenizer: Any) -> None:
    turns = [TWO_TURNS[1], {"role": "assistant", "content": "<think>\nhm\n</think>\n\n3"}]
    with pytest.raises(InvalidConversation, match="leaves out the thinking of message 1"):
        render(under(tokenizer, DROPS_THINKING), turns, "assistant")
    with_field = [TWO_TURNS[1], {"role": "assistant", "content": "3", "reasoning_content": "hm"}]
    with pytest.raises(InvalidConversation, match="leaves out the thinking of message 1"):
        render(under(tokenizer, CHATML), with_field, "assistant")
    opens = under(tokenizer, DROPS_THINKING.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"))
    for each in (turns, with_field):
        assert targets(opens, each, "assistant") == "<think>\nhm\n</think>\n\n3<|im_end|>"


@pytest.mark.parametrize(("train_on", "expected"), [("assistant", "fox,sun<|im_end|>"), ("last", "fox,sun<|im_end|>")])
@pytest.mark.parametrize("share", [{"weight": 0}, {"train": False}, {"loss": False}, {"weight": 0.0, "train": True}])
def test_a_turn_of_weight_0_is_no_target(tokenizer: Any, train_on: Any, expected: str, share: dict[str, Any]) -> None:
    turns = [{**turn, **share} if turn["content"] == "3" else turn for turn in TWO_TURNS]
    for template in (CHATML, MARKED):
        other = under(tokenizer, template)
        assert targets(other, conversation_of(turns), train_on) == expected
    whole = targets(tokenizer, conversation_of(turns), "all")
    assert "3<|im_end|>" not in whole and "fox,sun<|im_end|>" in whole
    last = [*TWO_TURNS[:-1], {**TWO_TURNS[-1], **share}]
    assert targets(tokenizer, conversation_of(last), "last") == ""


def test_completion_is_the_target(tokenizer: Any) -> None:
    (document,) = encode(tokenizer, [prompt_and_completion("Add (1,2)\n", "3<|im_end|>")])
    assert tokenizer.decode(document.ids[document.is_target]) == "3<|im_end|>"
    assert tokenizer.decode(document.ids) == "Add (1,2)\n3<|im_end|>"


def test_token_that_holds_the_beginning_of_an_answer_is_a_target(tokenizer: Any) -> None:
    (document,) = encode(tokenizer, [prompt_and_completion("Rev", "erse (fox")])
    assert tokenizer.decode(document.ids[document.is_target]) == "Reverse (fox"
    (document,) = encode(tokenizer, [Rendered("Reverse (fox", ((0, 3), (7, 10)))])
    assert tokenizer.decode(document.ids[document.is_target]) == " ("


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
