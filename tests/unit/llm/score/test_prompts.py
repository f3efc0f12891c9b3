"""Prompts of rows: every column that changes one is read, or refused by its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from forebay.llm.chat.messages import InvalidConversation
from forebay.llm.score.engines.engine import Prompt, RowAnswer
from forebay.llm.score.engines.openai import as_openai
from forebay.llm.score.engines.prompt_tokens import PromptTokens
from forebay.llm.score.prompts import PromptSource, find_prompt
from forebay.llm.source.tokenizers import TokenizerSpec, train_tokenizer

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
ASKED = [{"role": "user", "content": "Is it warm?"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]}


def prompt_of(row: Mapping[str, Any], **options: Any) -> Prompt:
    source = find_prompt(PromptSource(**options), [*row], "data")
    read = {name: row[name] for name in source.columns([*row])}
    return source.prompt(7, read)


@pytest.fixture(scope="module")
def tokens() -> PromptTokens:
    found = train_tokenizer(["Is it warm? weather"], TokenizerSpec(template="qwen3"))
    return PromptTokens(tokenizer=found, name="made", positions=None)


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"messages": ASKED}, {}),
        ({"conversations": [{"from": "human", "value": "Is it warm?"}]}, {}),
        ({"prompt": ASKED}, {}),
        ({"prompt": "Is it warm?"}, {"is_chat": True}),
        ({"question": "Is it warm?"}, {"column": "question", "is_chat": True}),
        ({"instruction": "Is it warm?", "output": "x"}, {}),
        ({"what": "it"}, {"template": "Is {what} warm?", "is_chat": True}),
    ],
    ids=["messages", "conversations", "prompt", "text as chat", "named", "instruction", "template"],
)
@pytest.mark.parametrize(
    "beside",
    [
        {"system": "Be short.", "tools": [TOOL]},
        {"system_prompt": "Be short.", "functions": '[{"name": "weather", "parameters": {}}]'},
    ],
    ids=["tools", "functions"],
)
def test_system_and_tools_are_part_of_a_conversation(
    tokens: PromptTokens, row: Mapping[str, Any], options: Mapping[str, Any], beside: Mapping[str, Any]
) -> None:
    found = prompt_of({**row, **beside, "chat_template_kwargs": {"enable_thinking": False}}, **options)
    assert [turn["content"] for turn in found.content] == ["Be short.", "Is it warm?"]  # type: ignore[index]
    assert found.tools[0]["function"]["name"] == "weather"
    (ids,) = tokens.questions([found])
    text = tokens.tokenizer.decode(ids)
    assert text.startswith("<|im_start|>system\nBe short.\n\n# Tools") and '"name": "weather"' in text
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_fields_that_arrow_adds_to_structs_are_no_part_of_a_prompt() -> None:
    other = {
        "type": "function",
        "function": {"name": "city", "parameters": {"type": "object", "properties": {"x": {}}}},
    }
    rows = [{"messages": ASKED, "tools": [{**TOOL, "strict": True}]}, {"messages": ASKED, "tools": [other]}]
    filled = pa.Table.from_pylist(rows).to_pylist()
    assert filled[1]["tools"][0]["strict"] is None
    source = find_prompt(PromptSource(), [*filled[1]], "data", from_arrow=True)
    assert source.prompt(0, filled[1]).tools == source.prompt(0, rows[1]).tools
    assert "strict" not in source.prompt(0, filled[1]).tools[0]
    # A null of JSON was written, and a function gets rows as they are.
    assert find_prompt(PromptSource(), [*filled[1]], "data").prompt(0, filled[1]).tools[0]["strict"] is None
    seen: list[Any] = []
    own = PromptSource(function=lambda row: seen.append(row) or "x")  # type: ignore[func-returns-value]
    find_prompt(own, [*filled[1]], "data", from_arrow=True).prompt(0, filled[1])
    assert seen == [filled[1]]


@pytest.mark.parametrize("name", ["messages", "conversations"])
def test_turns_as_json_text_are_no_prompt(name: str) -> None:
    with pytest.raises(InvalidConversation, match=f"column '{name}' is JSON text, not a list of turns"):
        prompt_of({name: json.dumps(ASKED)})
    assert prompt_of({name: "Is it warm?"}).content == "Is it warm?"


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"instruction": None, "input": "x"}, "column 'instruction' is 'None', not text"),
        ({"instruction": 5, "input": "x"}, "column 'instruction' is '5', not text"),
        ({"instruction": "Sum up.", "input": 5}, "column 'input' is '5', not text"),
    ],
)
def test_an_instruction_that_is_no_text_is_an_error_of_the_row(row: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidConversation, match=found):
        prompt_of(row)
    assert prompt_of({"instruction": "Sum up.", "input": " "}).content == [{"role": "user", "content": "Sum up."}]


@pytest.mark.parametrize("name", ["system", "tools"])
def test_text_beside_a_system_prompt_or_tools_is_refused(name: str) -> None:
    row = {"prompt": "Is it warm?", "system": "Be short." if name == "system" else None}
    row |= {"tools": [TOOL]} if name == "tools" else {}
    with pytest.raises(InvalidConversation, match=rf"column '{name}' is .*Set chat=true"):
        prompt_of(row)
    assert prompt_of({"prompt": "Is it warm?", name: None}).content == "Is it warm?"


def test_images_are_refused_and_history_is_read() -> None:
    with pytest.raises(InvalidConversation, match="column 'images' is"):
        prompt_of({"messages": ASKED, "images": ["a.png"]})
    found = prompt_of({"instruction": "And now?", "history": [["Is it warm?", "No."]], "system": "Be short."})
    assert [turn["content"] for turn in found.content] == ["Be short.", "Is it warm?", "No.", "And now?"]  # type: ignore[index]


def test_plans_without_such_columns_keep_their_identity() -> None:
    source = find_prompt(PromptSource(), ["messages", "id"], "data")
    assert source.identity() == PromptSource(column="messages").identity()
    assert find_prompt(PromptSource(), ["messages", "tools"], "data").identity() != source.identity()


def test_what_a_template_does_not_show_is_an_error_of_the_row(tokens: PromptTokens) -> None:
    plain = train_tokenizer(["Is it warm?"], TokenizerSpec())  # ChatML shows no tools
    chatml = PromptTokens(tokenizer=plain, name="made", positions=None)
    asked = [prompt_of({"messages": ASKED, "tools": [TOOL]}), prompt_of({"messages": ASKED})]
    refused, answered = chatml.questions(asked)
    assert isinstance(refused, RowAnswer)
    assert refused.error is not None
    assert "does not show the tools of the row, such as 'weather'" in refused.error
    assert isinstance(answered, list)
    (document,) = tokens.documents(
        [prompt_of({"messages": ASKED, "tools": [TOOL], "answer": " Yes"}, completion="answer")]
    )
    assert not isinstance(document, RowAnswer)
    assert "# Tools" in tokens.tokenizer.decode(document.ids)


def test_turns_for_a_server_have_ids_and_texts_as_arguments() -> None:
    talk = prompt_of({"messages": [*ASKED, CALL, {"role": "tool", "content": "12 degrees"}]}).content
    assert not isinstance(talk, str)
    asked, call, result = as_openai(talk)
    assert asked == ASKED[0]
    assert call["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    ]
    assert result["tool_call_id"] == "call_0"
