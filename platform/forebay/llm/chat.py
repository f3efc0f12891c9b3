"""Conversations as token ids with their targets. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from forebay.errors import InvalidOption

TrainOn = Literal["assistant", "last", "all"]
"""Tokens that are targets: of all assistant turns, of the last one, or every token."""

ROLES = ("system", "developer", "user", "assistant", "tool")
GENERATION_MARK = "{% generation"

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Chat template that many models share. It has the prefix property."""
TEMPLATES = {"chatml": CHATML}
"""Chat templates by name."""

Message = Mapping[str, Any]
Messages = Sequence[Message]


class ChatTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    eos_token_id: int | None
    chat_template: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def __call__(self, text: Any, **options: Any) -> Any: ...


class Document(NamedTuple):
    """Token ids, int32 [n], and a target mask, bool [n].

    A pair of answers is one document, so that both stay in one row: the one that is preferred, then the other one,
    which begins at `second`.
    """

    ids: NDArray[np.int32]
    is_target: NDArray[np.bool_]
    second: int | None = None

    @property
    def is_trained(self) -> bool:
        """Whether each answer has a target.

        The first token of a text is never a target.
        """
        cut = self.second
        texts = (self.is_target,) if cut is None else (self.is_target[:cut], self.is_target[cut:])
        return all(bool(text[1:].any()) for text in texts)


class InvalidConversation(ValueError):
    """A conversation that cannot be rendered, with what was found."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text of a conversation, with the ranges of its targets.

    Ranges are characters (start, stop). None: every character is a target.
    """

    text: str
    targets: tuple[tuple[int, int], ...] | None


def check_train_on(train_on: str) -> None:
    """Raise `InvalidOption` for an unknown choice of targets."""
    if train_on not in get_args(TrainOn):
        raise InvalidOption(
            f"train_on={train_on!r} is unknown. Choose one of {', '.join(map(repr, get_args(TrainOn)))}.",
            train_on=train_on,
        )


def check_messages(messages: object) -> Messages:
    """Check that `messages` is a conversation with an assistant turn.

    Returns it, a list of {role, content}. Raises `InvalidConversation`.
    """
    turns = check_turns(messages)
    roles = [message["role"] for message in turns]
    if "assistant" not in roles:
        raise InvalidConversation("no message is the assistant's, so there is nothing to train on")
    if roles[0] == "assistant":
        raise InvalidConversation("the first message is the assistant's, which has nothing to answer")
    return turns


def check_turns(messages: object) -> Messages:
    """Check that `messages` is a list of {role, content}.

    Returns it. Raises `InvalidConversation`.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InvalidConversation(f"the messages are {_short(messages)}, not a list of {{role, content}}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise InvalidConversation(f"message {number} is {_short(message)}, not {{role, content}}")
        if message["role"] not in ROLES:
            raise InvalidConversation(
                f"message {number} has the role {message['role']!r}, not one of {', '.join(ROLES)}"
            )
        if not isinstance(message["content"], str) or not message["content"].strip():
            raise InvalidConversation(f"message {number} has the content {_short(message['content'])}, not text")
    return messages


def render(tokenizer: ChatTokenizer, messages: Messages, train_on: TrainOn) -> Rendered:
    """Render a conversation by the tokenizer's template, with target ranges.

    The range of a turn is found by rendering the conversation up to it, with the beginning of the answer, and through
    it. The end mark of a turn is a target: a model has to learn where to stop. The line break behind it is not.

    Raises `InvalidOption` for a template that changes earlier turns when later ones are added.
    """
    text = _rendered(tokenizer, messages)
    if train_on == "all":
        return Rendered(text, None)
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    spans = []
    for number in turns if train_on == "assistant" else turns[-1:]:
        before = _rendered(tokenizer, messages[:number], add_generation_prompt=True)
        through = _rendered(tokenizer, messages[: number + 1])
        if not (text.startswith(through) and through.startswith(before)):
            raise InvalidOption(
                f"train_on={train_on!r} needs a chat template under which a conversation begins with the text of its "
                f"first turns. This one renders turn {number} otherwise when later turns follow (templates that leave "
                'earlier thinking out do so). Set train_on="all", or give template= with {% generation %} marks.'
            )
        spans.append((len(before), len(through.rstrip("\n"))))
    return Rendered(text, tuple(spans))


def prompt_and_completion(prompt: str, completion: str) -> Rendered:
    """Text of a prompt with its completion as the target."""
    text = prompt + completion
    return Rendered(text, ((len(prompt), len(text)),))


def encode(tokenizer: ChatTokenizer, texts: Sequence[Rendered]) -> Iterator[Document]:
    """Encode rendered texts to token ids and targets.

    A token that crosses the border of a range is not a target.
    """
    if not texts:
        return
    encoded = tokenizer([each.text for each in texts], add_special_tokens=False, return_offsets_mapping=True)
    for rendered, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        yield Document(np.asarray(ids, np.int32), _targets(rendered, offsets))


def encode_marked(tokenizer: ChatTokenizer, messages: Messages, train_on: TrainOn) -> Document:
    """Encode a conversation whose template has `{% generation %}` marks."""
    found = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    ids, marks = np.asarray(found["input_ids"], np.int32), np.asarray(found["assistant_masks"], bool)
    if train_on == "all":
        marks = np.ones(len(ids), bool)
    if train_on == "last":
        starts = np.flatnonzero(np.diff(marks, prepend=False) & marks)
        marks[: starts[-1] if len(starts) else 0] = False
    return Document(ids, marks)


def has_generation_marks(tokenizer: ChatTokenizer) -> bool:
    """Whether the tokenizer's template marks the assistant's tokens itself."""
    return GENERATION_MARK in str(tokenizer.chat_template or "").replace("{%-", "{%")


def _rendered(tokenizer: ChatTokenizer, messages: Messages, **options: bool) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))


def _targets(rendered: Rendered, offsets: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    if rendered.targets is None:
        return np.ones(len(offsets), bool)
    starts, stops = np.asarray(offsets, np.int64).reshape(-1, 2).T
    found = np.zeros(len(offsets), bool)
    for low, high in rendered.targets:
        found |= (starts >= low) & (stops <= high) & (stops > starts)
    return found


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
