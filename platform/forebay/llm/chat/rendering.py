"""Conversations as text with the ranges of their targets, under any chat template.

The tokenizer's own template is rendered once. What a turn of the assistant wrote is known by `MarkedText`, less the
header that a generation prompt has too. So earlier thinking is kept or dropped as the family does.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from forebay.errors import InvalidOption
from forebay.llm.chat.documents import Rendered, TrainOn
from forebay.llm.chat.messages import REASONING, Conversation, InvalidConversation, Message, Messages
from forebay.llm.chat.template import ChatTemplate, MarkedText, chat_template, end_texts

_THINKING = re.compile(r"<think>|<thinking>|\[THINK\]|<\|channel>thought|<thought>|<seed:think>|◁think▷|<reasoning>")
"""Beginnings of thinking. A generation prompt may hold one, which is a part of the answer all the same."""
_END_OF_THINKING = re.compile(
    r"</think>|</thinking>|\[/THINK\]|<channel\|>|</thought>|</seed:think>|◁/think▷|</reasoning>"
)
_OTHER_WAYS = 'Set train_on="all", or give template= with {% generation %} marks.'
_GLM, _GLM_TURNS = "[gMASK]", ("<|user|>", "<|observation|>", "<|system|>")
"""Beginning of the texts of ChatGLM and GLM, whose answers end with the header of the next turn."""


def render(tokenizer: Any, conversation: Conversation | Messages, train_on: TrainOn) -> Rendered:
    """Render a conversation by the tokenizer's template, with target ranges.

    The end mark of a turn is a target: a model has to learn where to stop. The line break behind it is not. Where a
    template has `{% generation %}` marks, they say what the targets are.

    Raises `InvalidConversation` for a conversation that the template refuses or shows in part, and for an answer that
    ends without an end token; `InvalidOption` for a template under which answers cannot be found surely.
    """
    if not isinstance(conversation, Conversation):
        conversation = Conversation(conversation)
    template = chat_template(tokenizer, with_tools=bool(conversation.tools))
    return _Rendering.of(template, conversation, end_texts(tokenizer)).rendered(train_on)


def prompt_text(tokenizer: Any, conversation: Conversation) -> str:
    """Text of a conversation that asks for the next answer.

    Raises `InvalidConversation` for a conversation that the template refuses or shows in part.
    """
    template, options = chat_template(tokenizer, with_tools=bool(conversation.tools)), _options(conversation)
    errors = list[InvalidConversation]()
    for shown in _forms(conversation.messages):
        try:
            found = MarkedText(template.text(shown, **options), (), ())
            made = _Rendering(template, conversation, shown, found, ())
            made.check_calls()
            made.check_all_shown()
            return template.text(shown, **options, add_generation_prompt=True)
        except InvalidConversation as error:
            errors.append(error)
    raise errors[0]


def without_ends(tokenizer: Any, rendered: Rendered) -> Rendered:
    """Leave the end tokens of answers out of the targets."""
    targets = []
    for start, stop in rendered.targets or ():
        written = rendered.text[start:stop].rstrip()
        end = next((each for each in end_texts(tokenizer) if written.endswith(each)), "")
        targets.append((start, start + len(written.removesuffix(end))))
    return replace(rendered, targets=tuple(targets))


@dataclass(frozen=True)
class _Rendering:
    """A conversation under a template.

    `shown` are its messages in the form that the template shows, `found` is their text.
    """

    template: ChatTemplate
    conversation: Conversation
    shown: Messages
    found: MarkedText
    ends: tuple[str, ...]

    @classmethod
    def of(cls, template: ChatTemplate, conversation: Conversation, ends: tuple[str, ...]) -> _Rendering:
        errors = list[InvalidConversation]()
        for shown in _forms(conversation.messages):
            try:
                found = template.marked(shown, **_options(conversation))
                made = cls(template, conversation, shown, found, ends)
                made.check_calls()
            except InvalidConversation as error:
                errors.append(error)
                continue
            made = made.with_last_thinking()
            made.check_all_shown()
            return made
        raise errors[0]

    def rendered(self, train_on: TrainOn) -> Rendered:
        text, untrained = self.found.text, self.conversation.untrained
        if train_on == "all":
            if not untrained:
                return Rendered(text, None)
            left_out = [self._range(number) for number in sorted(untrained)]
            borders = [0, *(each for span in left_out for each in span), len(text)]
            return Rendered(text, tuple(zip(borders[::2], borders[1::2], strict=True)))
        turns = self._answers if train_on == "assistant" else self._answers[-1:]
        targets: list[tuple[int, int]] = []
        for number in turns:
            if number not in untrained:
                text, ranges = self._with_end(text, number, self._targets(number))
                targets += ranges
        return Rendered(text, tuple(targets))

    @cached_property
    def _answers(self) -> list[int]:
        return [number for number, message in enumerate(self.shown) if message["role"] == "assistant"]

    def _range(self, number: int) -> tuple[int, int]:
        found = self.found.of(number)
        if found is None:
            raise InvalidOption(
                f"the chat template does not write turn {number} (the assistant's) in one loop over the messages, so "
                f"what of the text is its answer is not known. {_OTHER_WAYS}"
            )
        return found

    def _targets(self, number: int) -> list[tuple[int, int]]:
        """Ranges of an answer's targets."""
        if self.template.has_generation:
            return self._generated(number)
        start, stop = self._range(number)
        written = self.found.text[start:stop]
        header = self._header(number, written)
        stop = start + len(self._without_responses(number, written).rstrip())
        return [(start + len(header), stop)]

    def _generated(self, number: int) -> list[tuple[int, int]]:
        generated = self.found.generated
        if (turn := self.found.of(number)) is not None:
            return [span for span in generated if turn[0] <= span[0] and span[1] <= turn[1]]
        if len(generated) != len(self._answers):
            raise InvalidOption(
                f"the chat template has {len(generated)} generation marks for {len(self._answers)} turns of the "
                "assistant, outside of a loop over the messages. Put them into the loop."
            )
        return [generated[self._answers.index(number)]]

    def _header(self, number: int, written: str) -> str:
        """Beginning of a turn's text that a generation prompt gives."""
        before = self.shown[:number]
        prompt = self.template.marked(before, **_options(self.conversation), add_generation_prompt=True)
        end = _end_of(prompt, number - 1)
        if end is None or end == len(prompt.text):
            # The prompt may be written by the last pass of the loop, or the last message outside of one.
            without = self.template.marked(before, **_options(self.conversation))
            common = _num_common(prompt.text, without.text)
            end = min(common, _end_of(without, number - 1) or common)
        header = prompt.text[end:]
        thinking = _THINKING.search(header)
        header = header[: thinking.start()] if thinking else header
        if written.startswith(header) and (header or self._begins_at_once(number, written)):
            return header
        why = (
            f"asks for an answer by {header[-40:]!r}, and begins turn {number} by {written[:40]!r}"
            if header
            else f"has no generation prompt, and begins turn {number} by {written[:40]!r}"
        )
        raise InvalidOption(f"the chat template {why}, so where its answer begins is not known. {_OTHER_WAYS}")

    def _without_responses(self, number: int, written: str) -> str:
        """Text that a turn wrote before the results of its tools.

        Some templates write those within the turn that calls (Gemma 4).

        Raises `InvalidConversation` if the turn goes on behind them.
        """
        following = [n for n in range(number + 1, len(self.shown)) if self.shown[n]["role"] == "tool"]
        if not following or following[0] != number + 1:
            return written
        changed = [
            {**message, "content": f"a {message['content']} b"} if message["role"] == "tool" else message
            for message in self.shown
        ]
        other = self.template.marked(changed, **_options(self.conversation))
        span = other.of(number)
        if span is not None and other.text[span[0] : span[1]] == written:
            return written
        alone = self.template.marked(self.shown[: number + 1], **_options(self.conversation))
        span = alone.of(number) or (0, 0)
        called = written[: _num_common(written, alone.text[span[0] : span[1]])]
        if self._visible(number) and self._visible(number) not in called:
            raise InvalidConversation(
                f"the chat template writes the results of tools between the calls and the text of turn {number}"
            )
        following_token = next((each for each in self.ends if written.startswith(each, len(called))), "")
        return called + following_token

    def _begins_at_once(self, number: int, written: str) -> bool:
        """Whether a turn without a header begins with what the model writes."""
        begin = written.lstrip()
        content = self._visible(number)
        return bool(_THINKING.match(begin)) or begin.startswith(content[:40]) or not content

    def _with_end(self, text: str, number: int, ranges: list[tuple[int, int]]) -> tuple[str, list[tuple[int, int]]]:
        """Text and ranges of an answer that ends with an end token.

        Raises `InvalidConversation` for one that does not.
        """
        if not ranges:
            return text, ranges
        *earlier, (start, stop) = ranges
        if text[start:stop].rstrip().endswith(self.ends):
            return text, ranges
        if self.found.text.startswith(_GLM):
            following = next((each for each in _GLM_TURNS if text.startswith(each, stop)), None)
            if following is None and not text[stop:].strip():
                following = _GLM_TURNS["tool_calls" in self.shown[number]]
                text = text[:stop] + following
            if following is not None:
                return text, [*earlier, (start, stop + len(following))]
        raise InvalidConversation(
            f"turn {number} ends with {text[max(start, stop - 20) : stop]!r}, which is no end token of the tokenizer, "
            "so the model would never stop. Let the chat template end an answer with {{ eos_token }}, within its "
            "{% generation %} marks if it has them"
        )

    def check_calls(self) -> None:
        """Raise `InvalidConversation` if calls are not shown."""
        for number, message in enumerate(self.shown):
            names = [call["function"]["name"] for call in message.get("tool_calls", ())]
            written = self._text_of(number)
            if names and not all(name in written for name in names):
                raise InvalidConversation(f"the chat template does not show the tool calls of turn {number}")

    def check_all_shown(self) -> None:
        """Raise `InvalidConversation` for what the template leaves out."""
        for tool in self.conversation.tools:
            name = tool["function"].get("name")
            if str(name) not in self.found.text:
                raise InvalidConversation(f"the chat template does not show the tools of the row, such as {name!r}")
        for number, message in enumerate(self.shown):
            content = self._visible(number)
            if content and content not in self._text_of(number) and not self._depends_on(number):
                raise InvalidConversation(
                    f"the chat template leaves out the text of message {number} (the {message['role']}'s)"
                )

    def _text_of(self, number: int) -> str:
        """Text in which a message stands."""
        is_answer = self.shown[number]["role"] == "assistant"
        span = self.found.of(number) if is_answer else None
        return self.found.text if span is None else self.found.text[span[0] : span[1]]

    def _visible(self, number: int) -> str:
        """Content of a message without thinking, which a family may drop."""
        message = self.shown[number]
        content = str(message["content"] or "")
        if message["role"] == "assistant":
            content = _END_OF_THINKING.split(content)[-1]
        return content.strip()

    def _depends_on(self, number: int) -> bool:
        """Whether another content would be shown in another way."""
        changed = [*self.shown]
        changed[number] = {**changed[number], "content": f"a {self._visible(number)} b"}
        return self.template.text(changed, **_options(self.conversation)) != self.found.text

    def with_last_thinking(self) -> _Rendering:
        """Rendering in which the answer to the last question has its thinking.

        Some templates drop all thinking, though their generation prompt begins with it (R1's distills). Thinking of
        earlier turns is the family's affair.

        Raises `InvalidConversation` for thinking that the template does not show.
        """
        number = self._answers[-1]
        thinking, message = _thinking(self.shown[number]), self.shown[number]
        is_last = all(each["role"] != "user" for each in self.shown[number:])
        if not thinking or not is_last or thinking in self._text_of(number):
            return self
        options, word = _options(self.conversation), f"answerofturn{number}x"
        prompt = self.template.text(self.shown[:number], **options, add_generation_prompt=True)
        opening = _THINKING.findall(prompt[-40:])
        shown = [*self.shown[:number], {"role": "assistant", "content": word}, *self.shown[number + 1 :]]
        found = self.template.marked(shown, **options)
        if not opening or "tool_calls" in message or found.text.count(word) != 1:
            raise InvalidConversation(
                f"the chat template leaves out the thinking of message {number} (the assistant's). Leave it out of the "
                "row, or give a template= that has it"
            )
        return replace(self, found=_replaced(found, word, _with_thinking(message, opening[-1])))


def _num_common(one: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (left, right) in pairs if left != right), min(len(one), len(other)))


def _end_of(found: MarkedText, message: int) -> int | None:
    """End of the text of the last message, if a loop wrote it."""
    return found.spans[-1].stop if found.spans and found.spans[-1].message == message else None


def _options(conversation: Conversation) -> dict[str, Any]:
    return {"tools": [*conversation.tools] or None, **conversation.variables}


def _forms(messages: Messages) -> list[Messages]:
    """Messages as templates may want them.

    Beside tool calls, content is empty or null. Arguments are objects or their JSON text.
    """
    if not any("tool_calls" in message for message in messages):
        return [messages]
    return [
        [_form(message, empty=empty, as_text=as_text) for message in messages]
        for as_text in (False, True)
        for empty in ("", None)
    ]


def _form(message: Message, *, empty: str | None, as_text: bool) -> Message:
    if "tool_calls" not in message:
        return message
    calls = message["tool_calls"]
    if as_text:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in calls
        ]
    return {**message, "content": message["content"] or empty, "tool_calls": calls}


def _thinking(message: Message) -> str:
    """Thinking of a turn, in its field or in its content."""
    if thinking := message.get(REASONING[0]):
        return str(thinking).strip()
    before, *after = _END_OF_THINKING.split(str(message["content"] or ""))
    return _THINKING.split(before)[-1].strip() if after else ""


def _with_thinking(message: Message, opening: str) -> str:
    content = str(message["content"] or "")
    if thinking := message.get(REASONING[0]):
        return f"{opening}\n{str(thinking).strip()}\n{opening.replace('<', '</')}\n\n{content}"
    return content if _THINKING.match(content.lstrip()) else f"{opening}\n{content.lstrip()}"


def _replaced(found: MarkedText, word: str, text: str) -> MarkedText:
    """Marked text with `text` in place of `word`, which it has once."""
    place, longer = found.text.index(word), len(text) - len(word)

    def moved(position: int) -> int:
        return position if position <= place else position + longer

    return MarkedText(
        found.text.replace(word, text),
        tuple(each._replace(start=moved(each.start), stop=moved(each.stop)) for each in found.spans),
        tuple((moved(start), moved(stop)) for start, stop in found.generated),
    )
