from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.llm.chat.messages import Conversation, InvalidConversation
from forebay.llm.source.columns import Completion, PlainText, Preference, TokenIds, find_schema, renamed

QUESTION, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
TURNS = [QUESTION, ANSWER]


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"messages": TURNS, "text": "x"}, Conversation(TURNS)),
        ({"prompt": "q", "completion": "a"}, Completion("q", "a")),
        ({"prompt": [QUESTION], "completion": [ANSWER]}, Conversation(TURNS)),
        ({"prompt": [QUESTION], "completion": "a"}, Conversation(TURNS)),
        ({"instruction": "q", "output": "a"}, Conversation(TURNS)),
        (
            {"instruction": "q", "input": "i", "output": "a"},
            Conversation([{"role": "user", "content": "q\n\ni"}, ANSWER]),
        ),
        ({"instruction": "q", "input": " ", "output": "a"}, Conversation(TURNS)),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, Conversation(TURNS)),
        ({"input_ids": [1, 2], "labels": [-100, 2]}, TokenIds([1, 2], [-100, 2])),
        ({"input_ids": [1, 2]}, TokenIds([1, 2], None)),
        ({"input_ids": [1, 2, 0], "attention_mask": [1, 1, 0]}, TokenIds([1, 2], None)),
        ({"input_ids": [0, 1, 2], "attention_mask": [0, 1, 1], "labels": [0, -100, 2]}, TokenIds([1, 2], [-100, 2])),
        ({"input_ids": [1, 2, 3], "completion_mask": [0, 1, 1]}, TokenIds([1, 2, 3], [-100, 2, 3])),
        (
            {"input_ids": [1, 2, 3], "completion_mask": [0, 1, 1], "assistant_masks": [True, True, False]},
            TokenIds([1, 2, 3], [-100, 2, -100]),
        ),
        ({"input_ids": [1, 2], "completion_mask": None, "labels": None}, TokenIds([1, 2], None)),
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


@pytest.mark.parametrize(
    ("row", "names", "example"),
    [
        ({"input": "q", "output": "a"}, {"instruction": "input"}, Conversation(TURNS)),
        ({"input": "q", "output": "a"}, {"prompt": "input", "completion": "output"}, Completion("q", "a")),
        ({"body": "x", "messages": TURNS}, {"text": "body"}, PlainText("x")),
        ({"body": "x", "text": "y"}, {"text": "body"}, PlainText("x")),
        ({"prompt": "a", "completion": "q"}, {"prompt": "completion", "completion": "prompt"}, Completion("q", "a")),
        ({"q": "q", "completion": "a", "messages": TURNS}, {"prompt": "q"}, Completion("q", "a")),
    ],
)
def test_a_column_that_is_named_is_read_once(row: dict[str, Any], names: dict[str, str], example: object) -> None:
    assert find_schema(list(row), names).example(renamed(row, names)) == example


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"text": "bdy"}, "reads 'text' from the column 'bdy', and the first row of the data has 'body', 'messages'"),
        ({"text": "body", "prompt": "body"}, "names 'text', 'prompt', and no row has all .* would be read as messages"),
    ],
)
def test_names_that_are_read_nowhere_are_refused(names: dict[str, str], found: str) -> None:
    with pytest.raises(InvalidOption, match=found):
        find_schema(["body", "messages"], names)


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
        (
            ["input_ids"],
            {"input_ids": [1, 2], "labels": [2, -100]},
            "labels have 2 at position 0, and input_ids 1: a",
        ),
        (
            ["input_ids"],
            {"input_ids": [1, 2], "attention_mask": [1]},
            r"'attention_mask' is \[1\], not a list of 2",
        ),
        (["input_ids"], {"input_ids": [1, 2], "completion_mask": [0, 2]}, r"'completion_mask' is \[0, 2\], not a list"),
        (["input_ids"], {"input_ids": [1, 2], "attention_mask": [0, 0]}, "'attention_mask' leaves no token of the row"),
        (["input_ids"], {"input_ids": [1, 2], "labels": [1]}, "the row has 2 input_ids and 1 labels"),
        (["input_ids"], {"input_ids": []}, "the row has 0 input_ids"),
    ],
)
def test_rows_that_are_not_valid(first: list[str], row: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidConversation, match=found):
        find_schema(first, {}).example(row)


SYSTEM = {"role": "system", "content": "s"}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
}
CALLED = [QUESTION, CALL, {"role": "tool", "content": "r"}, ANSWER]


@pytest.mark.parametrize(
    ("row", "example"),
    [
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
            [SYSTEM, *TURNS],
        ),
        ({"messages": TURNS, "system": "", "images": []}, TURNS),
        ({"messages": [SYSTEM, *TURNS], "system_prompt": "s"}, [SYSTEM, *TURNS]),
        ({"instruction": "q", "output": "a", "history": [["q", "a"]], "system": "s"}, [SYSTEM, *TURNS, *TURNS]),
        ({"prompt": [QUESTION], "completion": "a", "system": "s"}, [SYSTEM, *TURNS]),
        (
            {
                "conversations": [
                    {"from": "human", "value": "q"},
                    {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                    {"from": "observation", "value": "r"},
                    {"from": "gpt", "value": "a"},
                ]
            },
            CALLED,
        ),
        ({"messages": [QUESTION, {**CALL, "content": None}, {"role": "tool", "content": "r"}, ANSWER]}, CALLED),
        (
            {
                "messages": [
                    QUESTION,
                    {"role": "assistant", "function_call": {"name": "f", "arguments": '{"x": 1}'}},
                    {"role": "function", "content": "r"},
                    ANSWER,
                ]
            },
            CALLED,
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, ANSWER]}, TURNS),
    ],
)
def test_what_changes_a_prompt_is_read(row: dict[str, Any], example: Any) -> None:
    assert find_schema(list(row), {}).example(row) == Conversation(example)


@pytest.mark.parametrize("prompt", [[QUESTION], "q", None])
@pytest.mark.parametrize("has_prompt", [True, False])
def test_answers_may_contain_their_prompt(prompt: Any, has_prompt: bool) -> None:
    chosen, rejected = ([*([QUESTION] if has_prompt or prompt is None else []), ANSWER] for _ in range(2))
    row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    assert find_schema(list(row), {}).example(row) == Preference(Conversation(TURNS), Conversation(TURNS))


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "self"])
def test_variables_of_a_template_that_it_gets_otherwise_are_refused(name: str) -> None:
    row = {"messages": TURNS, "chat_template_kwargs": {name: False}}
    with pytest.raises(InvalidConversation, match=f"'chat_template_kwargs' has '{name}', which is given by the row"):
        find_schema(list(row), {}).example(row)


@pytest.mark.parametrize("tools", [[TOOL], [{"name": "f"}], '[{"name": "f"}]', {"name": "f"}, ['{"name": "f"}']])
@pytest.mark.parametrize("column", ["tools", "functions"])
def test_tools_are_read_in_each_form(tools: Any, column: str) -> None:
    found = find_schema(["messages"], {}).example({"messages": TURNS, column: tools})
    assert found == Conversation(TURNS, (TOOL,))


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (
            {"messages": TURNS, "images": ["a.png"]},
            r"column 'images' is \['a.png'\], which changes a prompt and is not r",
        ),
        ({"conversations": TURNS, "history": [["q", "a"]]}, "column 'history' is .* is not read beside conversations"),
        ({"prompt": "q", "completion": "a", "system": "s"}, "column 'system' is 's', and the prompt is text"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "tools": [TOOL]}, "column 'tools' is .* the prompt is text"),
        ({"messages": [SYSTEM, *TURNS], "system": "other"}, "a column 'system' and another system turn"),
        ({"messages": TURNS, "system": ["s"]}, r"column 'system' is \['s'\], not text"),
        ({"messages": TURNS, "tools": "[{"}, "the tools are text that is not JSON"),
        ({"messages": TURNS, "tools": [3]}, "a tool is 3, not {type, function}"),
        ({"instruction": "q", "output": "a", "history": ["q"]}, "column 'history' is .* not a list of"),
        ({"messages": [QUESTION, {**CALL, "tool_calls": ["x"]}]}, "message 1 has the tool call 'x', not one of"),
        ({"messages": [{**CALL, "role": "user"}, ANSWER]}, "message 0 has tool calls, and is not the assistant's"),
        ({"messages": [QUESTION, {**ANSWER, "weight": 0.5}]}, "message 1 has weight=0.5, and only 0 and 1 are known"),
        ({"messages": [{**QUESTION, "train": True}, ANSWER]}, "message 0 has train=True, and is the user's"),
        ({"messages": [QUESTION, {**ANSWER, "train_detail": []}]}, "message 1 has train_detail, which is not read"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWER]}, "a part of the kind 'image'"),
    ],
)
def test_what_changes_a_prompt_and_is_not_read_is_refused(row: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidConversation, match=found):
        find_schema(list(row), {}).example(row)
