"""Chat templates whose output tells which message wrote it.

A template of transformers is Jinja. Its tree gets one more output at the beginning of each loop, which names the
message of the pass, and one behind the loop. So a character of the text belongs to a message, whatever the template
does with thinking, tools or earlier turns.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from forebay.errors import InvalidOption
from forebay.llm.chat.messages import InvalidConversation, Message

_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
"""Characters around a mark. Both are for private use."""
_MARK = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_OF_TEMPLATES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of the expressions of a template."""
_MARKER, _BEGINS, _ENDS = "forebay_marker", "+", "-"
_NOT_THE_END = re.compile(
    r"</(?!s>)|\[/|tool.?call|think|thought|channel|message|start|begin|sep|python", re.IGNORECASE
)
"""Added tokens that begin something, or close a part of an answer."""


class Span(NamedTuple):
    """Characters `start` to `stop` of a text, of a message by number."""

    start: int
    stop: int
    message: int


@dataclass(frozen=True, slots=True)
class MarkedText:
    """Text of a conversation.

    Attributes:
        text: The text, without marks.
        spans: Characters that a pass of a loop over the messages wrote, in order.
        generated: Characters within `{% generation %}`, by (start, stop).
    """

    text: str
    spans: tuple[Span, ...]
    generated: tuple[tuple[int, int], ...]

    def of(self, message: int) -> tuple[int, int] | None:
        """Range of a message, or None.

        None for one that wrote nothing, or in several places.
        """
        found = [(start, stop) for start, stop, number in self.spans if number == message]
        joined = bool(found) and all(one[1] == other[0] for one, other in pairwise(found))
        return (found[0][0], found[-1][1]) if joined else None


class ChatTemplate:
    """Chat template of a tokenizer.

    Raises `InvalidOption` for a template that is not Jinja.
    """

    def __init__(self, tokenizer: Any, source: str) -> None:
        from jinja2 import TemplateError  # noqa: PLC0415 - comes with transformers
        from transformers.utils.chat_template_utils import (  # noqa: PLC0415 - an extra
            _compile_jinja_template,
        )

        self.source = source
        self._variables = {**tokenizer.special_tokens_map}
        try:
            # No public name gives the environment in which transformers renders (5.16 to 5.23).
            self._plain = _compile_jinja_template(source)
            environment = self._plain.environment
            tree = environment.parse(source)
        except TemplateError as error:
            raise InvalidOption(
                f"the chat template is not Jinja ({error}). Correct chat_template.jinja in the folder of the "
                "tokenizer, or give template=.",
            ) from error
        self.has_generation = _insert_marks(tree)
        code = environment.compile(tree)
        self._marked = environment.template_class.from_code(environment, code, environment.make_globals(None))

    def marked(self, messages: Sequence[Message], *, tools: Any = None, **variables: Any) -> MarkedText:
        """Render messages.

        Raises `InvalidConversation` for what the template refuses.
        """
        messages = [dict(message) for message in messages]
        marker = _marker({id(message): number for number, message in enumerate(messages)})
        given = self._given(messages, tools, variables)
        found = _parse(_rendered(self._marked, given | {_MARKER: marker}))
        if found.text != _rendered(self._plain, given):
            raise InvalidOption(
                "the chat template works on the text of its own turns, so what a turn wrote is not known. Set "
                'train_on="all", or give template= with {% generation %} marks.'
            )
        return found

    def text(self, messages: Sequence[Message], *, tools: Any = None, **variables: Any) -> str:
        """Text of messages. Raises as `marked`."""
        return _rendered(self._plain, self._given([*messages], tools, variables))

    def _given(self, messages: list[Any], tools: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
        usual = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": False}
        return {**self._variables, **usual, **variables}


_KNOWN: weakref.WeakKeyDictionary[Any, dict[str, ChatTemplate]] = weakref.WeakKeyDictionary()


def chat_template(tokenizer: Any, *, with_tools: bool = False) -> ChatTemplate:
    """Chat template of `tokenizer`, compiled once.

    Some tokenizers have another one for tools. Raises as `ChatTemplate`.
    """
    source = tokenizer.chat_template
    if not isinstance(source, str):
        source = tokenizer.get_chat_template(None, [{}] if with_tools else None)
    known = _KNOWN.setdefault(tokenizer, {})
    if source not in known:
        known[source] = ChatTemplate(tokenizer, source)
    return known[source]


_END_TOKENS: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()


def end_texts(tokenizer: Any) -> tuple[str, ...]:
    """Texts of the tokens that may end an answer.

    The end token, and every added token but those that close a part of an answer.
    """
    if tokenizer not in _END_TOKENS:
        added = (str(each) for each in tokenizer.added_tokens_decoder.values())
        found = [tokenizer.eos_token, *(each for each in added if not _NOT_THE_END.search(each))]
        _END_TOKENS[tokenizer] = tuple(dict.fromkeys(each for each in found if each))
    return _END_TOKENS[tokenizer]


def _insert_marks(tree: Any) -> bool:
    """Insert the marks into a template's tree.

    Returns whether it has `{% generation %}`.
    """
    from jinja2 import nodes  # noqa: PLC0415 - comes with transformers

    def output(*arguments: Any) -> Any:
        return nodes.Output([nodes.Call(nodes.Name(_MARKER, "load"), [*arguments], [], None, None)])

    has_generation = False
    for number, loop in enumerate([*tree.find_all(nodes.For)]):
        if isinstance(loop.target, nodes.Name):
            loop.body.insert(0, output(nodes.Const(number), nodes.Name(loop.target.name, "load")))
            parent = _list_of(tree, loop)
            # Nodes are equal by their content: two loops may be.
            place = next(place for place, each in enumerate(parent) if each is loop)
            parent.insert(place + 1, output(nodes.Const(number)))
    for block in tree.find_all(nodes.CallBlock):
        if getattr(block.call.node, "name", None) == "_generation_support":
            has_generation = True
            block.body.insert(0, nodes.Output([nodes.TemplateData(f"{_OPEN}{_BEGINS}{_CLOSE}")]))
            block.body.append(nodes.Output([nodes.TemplateData(f"{_OPEN}{_ENDS}{_CLOSE}")]))
    return has_generation


def _list_of(tree: Any, node: Any) -> list[Any]:
    """List of statements that holds a node."""
    waiting = [tree]
    while waiting:
        parent = waiting.pop()
        for _, value in parent.iter_fields():
            if isinstance(value, list) and any(each is node for each in value):
                return value
        waiting += parent.iter_child_nodes()
    raise AssertionError("a loop stands in a list of statements")


def _marker(numbers: Mapping[int, int]) -> Callable[..., str]:
    """Function that a marked template calls.

    With a loop and the value of its pass, or at the end of the loop.
    """
    active = set[int]()

    def mark(loop: int, *passed: Any) -> str:
        if not passed:
            ends = loop in active
            active.discard(loop)
            # Loops over other things write nothing: a template may look at the text of its own macros.
            return f"{_OPEN}{loop}:{_CLOSE}" if ends else ""
        if (number := numbers.get(id(passed[0]))) is None:
            return ""
        active.add(loop)
        return f"{_OPEN}{loop}:{number}{_CLOSE}"

    return mark


def _rendered(template: Any, given: Mapping[str, Any]) -> str:
    from jinja2 import TemplateError  # noqa: PLC0415 - comes with transformers

    try:
        text = str(template.render(**given))
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidConversation(f"the text has {error.object[error.start]!a}, half of a character") from error
    except (TemplateError, *_OF_TEMPLATES) as error:
        raise InvalidConversation(
            f"the chat template refuses the conversation ({error or type(error).__name__})"
        ) from error
    return text


def _parse(marked: str) -> MarkedText:
    parts, spans, generated = [], list[Span](), list[tuple[int, int]]()
    stack: list[tuple[str, int]] = []
    position = begin = last = 0
    for mark in _MARK.finditer(marked):
        text = marked[last : mark.start()]
        parts.append(text)
        _append(spans, position, position := position + len(text), stack)
        last, content = mark.end(), mark[1]
        if content == _BEGINS:
            begin = position
        elif content == _ENDS:
            generated.append((begin, position))
        else:
            loop, _, number = content.partition(":")
            loops = [each for each, _ in stack]
            if loop in loops:
                del stack[loops.index(loop) :]
            if number:
                stack.append((loop, int(number)))
    parts.append(marked[last:])
    return MarkedText("".join(parts), tuple(spans), tuple(generated))


def _append(spans: list[Span], start: int, stop: int, stack: Sequence[tuple[str, int]]) -> None:
    if not stack or start == stop:
        return
    message = stack[-1][1]
    if spans and spans[-1].stop == start and spans[-1].message == message:
        start = spans.pop().start
    spans.append(Span(start, stop, message))
