"""Targets under the templates of each family, as text."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.llm.chat.documents import encode
from forebay.llm.chat.messages import InvalidConversation, conversation_of
from forebay.llm.chat.named import TEMPLATES, template_named
from forebay.llm.chat.rendering import render
from forebay.llm.source.tokenizers import load_tokenizer
from forebay.llm.source.tokenizers import tokenizer as tokenizer_of

Make = Callable[[str], Any]
BAR = "\uff5c"
SYSTEM, ASK, MORE = ({"role": role, "content": text} for role, text in (("system", "s"), ("user", "a"), ("user", "c")))
NO_SYSTEM = {"gemma", "gemma2", "mistral-v1"}
EMPTY = "<think>\n\n</think>\n\n"
# What stands before and behind an answer: of an earlier turn, and of the last one.
SAME = {
    "chatml": ("", "<|im_end|>"),
    "qwen2.5": ("", "<|im_end|>"),
    "llama3": ("", "<|eot_id|>"),
    "llama3.1": ("", "<|eot_id|>"),
    "llama3.2": ("", "<|eot_id|>"),
    "llama3.3": ("", "<|eot_id|>"),
    "llama4": ("", "<|eot|>"),
    "gemma": ("", "<end_of_turn>"),
    "gemma2": ("", "<end_of_turn>"),
    "gemma3": ("", "<end_of_turn>"),
    "gemma4": ("", "<turn|>"),
    "phi3": ("", "<|end|>"),
    "phi4": ("", "<|im_end|>"),
    "phi4-mini": ("", "<|end|>"),
    "mistral": ("", "</s>"),
    "mistral-v1": (" ", "</s>"),
    "deepseek-v3": ("", f"<{BAR}end▁of▁sentence{BAR}>"),
    "deepseek-r1": ("", f"<{BAR}end▁of▁sentence{BAR}>"),
    "glm4.5": ("\n<think></think>\n", "<|user|>"),
}
AROUND = {name: (around, around) for name, around in SAME.items()} | {
    "qwen3": (("", "<|im_end|>"), (EMPTY, "<|im_end|>")),
    "qwen3.6": (("", "<|im_end|>"), (EMPTY, "<|im_end|>")),
    "gpt-oss": (("<|channel|>final<|message|>", "<|end|>"), ("<|channel|>final<|message|>", "<|return|>")),
}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def targets(tokenizer: Any, messages: Any, train_on: Any = "assistant", **columns: Any) -> str:
    (document,) = encode(tokenizer, [render(tokenizer, conversation_of(messages, **columns), train_on)])
    return str(tokenizer.decode(document.ids[document.is_target]))


@pytest.mark.parametrize("name", TEMPLATES)
def test_targets_of_one_turn_of_several_and_of_the_last(tokenizer_for: Make, name: str) -> None:
    tokenizer, ((before, behind), (last_before, last_behind)) = tokenizer_for(name), AROUND[name]
    one = [ASK, answer("b")]
    assert targets(tokenizer, one) == f"{last_before}b{last_behind}"
    several = [ASK, answer("b"), MORE, answer("d")]
    assert targets(tokenizer, several) == f"{before}b{behind}{last_before}d{last_behind}"
    assert targets(tokenizer, several, "last") == f"{last_before}d{last_behind}"
    if name in NO_SYSTEM:
        with pytest.raises(InvalidConversation, match="refuses the conversation"):
            targets(tokenizer, [SYSTEM, *one])
    else:
        assert targets(tokenizer, [SYSTEM, *several]) == f"{before}b{behind}{last_before}d{last_behind}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3", ("b<|im_end|>", "<think>\nho\n</think>\n\nd<|im_end|>")),
        ("qwen3.6", ("b<|im_end|>", "<think>\nho\n</think>\n\nd<|im_end|>")),
        ("glm4.5", ("\n<think></think>\nb<|user|>", "\n<think>ho</think>\nd<|user|>")),
        ("gemma4", ("b<turn|>", "<|channel>thought\nho\n<channel|>d<turn|>")),
        (
            "gpt-oss",
            (
                "<|channel|>final<|message|>b<|end|>",
                "<|channel|>analysis<|message|>ho<|end|><|start|>assistant<|channel|>final<|message|>d<|return|>",
            ),
        ),
        (
            "deepseek-r1",
            (f"b<{BAR}end▁of▁sentence{BAR}>", f"<think>\nho\n</think>\n\nd<{BAR}end▁of▁sentence{BAR}>"),
        ),
    ],
)
@pytest.mark.parametrize("field", ["reasoning_content", "thinking"])
def test_thinking_stays_in_the_last_answer_only(
    tokenizer_for: Make, name: str, expected: tuple[str, str], field: str
) -> None:
    turns = [ASK, answer("b", **{field: "hm"}), MORE, answer("d", **{field: "ho"})]
    assert targets(tokenizer_for(name), turns) == "".join(expected)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
def test_tools_are_shown_and_calls_are_targets(tokenizer_for: Make, name: str) -> None:
    tokenizer = tokenizer_for(name)
    turns = [
        ASK,
        answer("", tool_calls=[{"function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]),
        {"role": "tool", "content": "rain"},
        answer("d"),
    ]
    tools = [{"name": "weather", "parameters": {}}]
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
    assert targets(tokenizer, turns, tools=tools) == f"{call}{EMPTY if name == 'qwen3' else ''}d<|im_end|>"
    assert '"name": "weather"' in render(tokenizer, conversation_of(turns, tools=tools), "all").text


LLAMA_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of argument '
    'name and its value}.Do not use variables.\n\n{\n    "type": "function",\n    "function": {\n        "name": '
    '"weather"\n    }\n}\n\na<|eot_id|>'
)
GLM_TOOLS = (
    "[gMASK]<sop><|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    '{"type": "function", "function": {"name": "weather"}}\n</tools>\n\n'
)


GLM_TARGETS = (
    "\n<think></think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call><|observation|>\n<think></think>\nd<|user|>"
)


@pytest.mark.parametrize(
    ("name", "shown", "expected"),
    [
        (
            "llama3.1",
            ("ipython\nCutting", LLAMA_TOOLS, '<|start_header_id|>ipython<|end_header_id|>\n\n"rain"<|eot_id|>'),
            '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}<|eot_id|>d<|eot_id|>',
        ),
        (
            "glm4.5",
            (GLM_TOOLS, "\n</tool_call><|observation|>\n<tool_response>\nrain\n</tool_response><|assistant|>\n"),
            GLM_TARGETS,
        ),
    ],
)
@pytest.mark.parametrize("has_system", [True, False])
def test_tools_are_shown_as_the_family_does(
    tokenizer_for: Make, name: str, shown: tuple[str, ...], expected: str, has_system: bool
) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Paris", "days": 2}}}
    turns = [ASK, answer("", tool_calls=[call]), {"role": "tool", "content": "rain"}, answer("d")]
    turns = [SYSTEM, *turns] if has_system else turns
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert targets(tokenizer_for(name), turns, tools=tools) == expected
    text = render(tokenizer_for(name), conversation_of(turns, tools=tools), "all").text
    assert all(each in text for each in shown)


def test_llama_refuses_several_calls_at_once(tokenizer_for: Make) -> None:
    calls = [{"function": {"name": "weather", "arguments": {}}}] * 2
    with pytest.raises(InvalidConversation, match="single tool-calls at once"):
        targets(tokenizer_for("llama3.1"), [ASK, answer("", tool_calls=calls)])


WITH_TOOLS = {"qwen2.5", "qwen3", "llama3.1", "llama3.2", "llama3.3", "glm4.5"}


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - WITH_TOOLS))
def test_a_template_without_tools_refuses_them(tokenizer_for: Make, name: str) -> None:
    with pytest.raises(InvalidConversation, match="does not show the tools of the row, such as 'weather'"):
        targets(tokenizer_for(name), [ASK, answer("b")], tools=[{"name": "weather"}])


def _random_turns(random_number: random.Random) -> list[dict[str, Any]]:
    words = [f"{word} " * random_number.randint(1, 3) for word in ("ab", "<b>", "\n", "é", "'x'", "{{ y }}", "1. ")]
    questions = [f"q{number}{random_number.choice(words)}?" for number in range(random_number.randint(1, 4))]
    turns = [
        ({"role": "user", "content": each}, answer(f"w{number}{random_number.choice(words)}."))
        for number, each in enumerate(questions)
    ]
    return [*itertools.chain.from_iterable(turns)]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.variation) for seed in range(1, 20))])
def test_law_targets_are_the_answers_and_the_text_is_the_template_s(tokenizer_for: Make, name: str, seed: int) -> None:
    tokenizer, turns = tokenizer_for(name), _random_turns(random.Random(seed))
    rendered = render(tokenizer, turns, "assistant")
    plain = tokenizer.apply_chat_template(turns, tokenize=False)
    assert rendered.text in (plain, plain + "<|user|>")
    answers, (of_earlier, of_last) = turns[1::2], AROUND[name]
    around = [of_earlier] * (len(answers) - 1) + [of_last]
    expected = [f"{before}{turn['content']}{behind}" for turn, (before, behind) in zip(answers, around, strict=True)]
    assert [rendered.text[start:stop] for start, stop in rendered.targets or ()] == expected
    untrained = render(tokenizer, conversation_of([*turns[:-1], {**turns[-1], "weight": 0}]), "assistant")
    assert [untrained.text[start:stop] for start, stop in untrained.targets or ()] == expected[:-1]


def test_names_are_found_however_they_are_spelled() -> None:
    assert template_named("Llama-3.1") == TEMPLATES["llama3.1"]
    assert template_named("DeepSeek_R1") == TEMPLATES["deepseek-r1"]
    with pytest.raises(InvalidOption, match=r"template='qwem3' is neither a known template .*Did you mean 'qwen3'\?"):
        template_named("qwem3")


def test_a_tokenizer_without_the_tokens_of_a_template_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InvalidOption, match=r"template='llama3' writes '<\|end_header_id\|>', which is no token of"):
        load_tokenizer(tokenizer_of(str(tmp_path), template="llama3"))
    assert load_tokenizer(tokenizer_of(str(tmp_path), template="qwen3")).chat_template == TEMPLATES["qwen3"]
