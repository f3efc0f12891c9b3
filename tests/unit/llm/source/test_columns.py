from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.llm.chat import InvalidConversation
from forebay.llm.source.columns import Completion, Conversation, PlainText, TokenIds, find_schema, renamed

QUESTION, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
TURNS = [QUESTION, ANSWER]


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"messages": TURNS, "text": "x"}, Conversation(TURNS)),
        ({"prompt": "q", "completion": "a"}, Completion("q", "a")),
        ({"prompt": [QUESTION], "completion": [ANSWER]}, Conversation(TURNS)),
        ({"prompt": [QUESTION], "completion": "a"}, Conversation(TURNS)),
        ({"instruction": "q", "output": "a"}, Conversation(tuple(TURNS))),
        (
            {"instruction": "q", "input": "i", "output": "a"},
            Conversation(({"role": "user", "content": "q\n\ni"}, ANSWER)),
        ),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, Conversation(TURNS)),
        ({"input_ids": [1, 2], "labels": [-100, 2]}, TokenIds([1, 2], [-100, 2])),
        ({"input_ids": [1, 2]}, TokenIds([1, 2], None)),
        ({"text": "x", "id": 1}, PlainText("x")),
    ],
)
def test_columns_decide_what_a_row_is(row: dict[str, Any], example: object) -> None:
    assert find_schema(list(row), {}).example(row) == example


def test_columns_may_have_other_names() -> None:
    names = {"text": "body"}
    assert find_schema(["body"], names).example(renamed({"body": "x"}, names)) == PlainText("x")
    with pytest.raises(InvalidOption, match="columns= names 'txet'"):
        find_schema(["body"], {"txet": "body"})


def test_data_without_text_is_refused() -> None:
    with pytest.raises(
        InvalidOption,
        match=r"has the columns 'a', 'b', and needs one of: chosen \+ rejected, messages, prompt \+ compl",
    ):
        find_schema(["a", "b"], {})


@pytest.mark.parametrize(
    ("first", "row", "found"),
    [
        (["text"], {"messages": TURNS}, "the row has the columns 'messages', without 'text', and the first row"),
        (["text"], {"text": None}, "column 'text' is 'None', not text"),
        (["prompt", "completion"], {"prompt": "x", "completion": ""}, "column 'completion' is '', not text"),
        (["conversations"], {"conversations": "x"}, "not a list of {from, value}"),
        (["conversations"], {"conversations": [{"from": "robot", "value": "x"}]}, "the role 'robot'"),
        (["input_ids"], {"input_ids": [1, "x"]}, "column 'input_ids' is not a list of whole numbers"),
        (["input_ids"], {"input_ids": [1, 2], "labels": [1]}, "the row has 2 input_ids and 1 labels"),
        (["input_ids"], {"input_ids": []}, "the row has 0 input_ids"),
    ],
)
def test_rows_that_are_not_valid(first: list[str], row: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidConversation, match=found):
        find_schema(first, {}).example(row)
