"""Rendered texts as token ids with their targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from forebay.errors import InvalidOption

TrainOn = Literal["assistant", "last", "all"]
"""Tokens that are targets: of all assistant turns, of the last one, or every token."""


class ChatTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    eos_token: Any
    eos_token_id: int | None
    chat_template: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def __call__(self, text: Any, **options: Any) -> Any: ...


class Document(NamedTuple):
    """Token ids, int32 [n], and a target mask, bool [n].

    A pair of answers is one document, so that both stay in one row: the one that is preferred, then the other one,
    which begins at `second`. Beside an answer with a label, `is_desired`, it is the answer to another prompt.
    """

    ids: NDArray[np.int32]
    is_target: NDArray[np.bool_]
    second: int | None = None
    is_desired: bool = False

    @property
    def is_trained(self) -> bool:
        """Whether each answer has a target.

        The first token of a text is never a target.
        """
        cut = self.second
        texts = (self.is_target,) if cut is None else (self.is_target[:cut], self.is_target[cut:])
        return all(bool(text[1:].any()) for text in texts)


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


def prompt_and_completion(prompt: str, completion: str) -> Rendered:
    """Text of a prompt with its completion as the target."""
    text = prompt + completion
    return Rendered(text, ((len(prompt), len(text)),))


def encode(tokenizer: ChatTokenizer, texts: Sequence[Rendered]) -> Iterator[Document]:
    """Encode rendered texts to token ids and targets.

    A token that begins before a range and ends in it is a target: it holds the beginning of the answer, such as the
    word behind the blank that ends a prompt. One that goes on behind a range is not.
    """
    if not texts:
        return
    encoded = tokenizer([each.text for each in texts], add_special_tokens=False, return_offsets_mapping=True)
    for rendered, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        yield Document(np.asarray(ids, np.int32), _targets(rendered, offsets))


def _targets(rendered: Rendered, offsets: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    if rendered.targets is None:
        return np.ones(len(offsets), bool)
    starts, stops = np.asarray(offsets, np.int64).reshape(-1, 2).T
    found = np.zeros(len(offsets), bool)
    for low, high in rendered.targets:
        found |= (stops > low) & (stops <= high) & (stops > starts)
    return found
