"""Prompts as token ids.

Conversations by the chat template, texts as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.errors import InvalidOption
from forebay.llm.chat.documents import Document, Rendered, TrainOn, encode, prompt_and_completion
from forebay.llm.chat.messages import InvalidConversation
from forebay.llm.chat.rendering import prompt_text, render, without_ends
from forebay.llm.score.engines.engine import Prompt, RowAnswer, TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """Tokenizer of an engine.

    `positions` limits the tokens of a prompt with its answer. None: no limit.

    The begin token stands before a text if the tokenizer puts it there itself. A chat template writes its own.
    """

    tokenizer: Any
    name: str
    positions: int | None

    def questions(self, prompts: Sequence[Prompt]) -> list[list[int] | RowAnswer]:
        """Encode prompts to token ids, or to answers with errors.

        A prompt without tokens and one that is too long are errors.
        """
        texts = [self._text_or_error(prompt) for prompt in prompts]
        ids: list[list[int] | RowAnswer] = [each if isinstance(each, RowAnswer) else [] for each in texts]
        for number, prompt in enumerate(prompts):
            if isinstance(prompt.content, TokenPrompt):
                ids[number] = list(prompt.content.ids)
        for is_plain in (True, False):
            chosen = {
                number: text
                for number, text in enumerate(texts)
                if isinstance(text, str) and isinstance(prompts[number].content, str) == is_plain
            }
            if chosen:
                found = self.tokenizer([*chosen.values()], add_special_tokens=is_plain)["input_ids"]
                for number, each in zip(chosen, found, strict=True):
                    ids[number] = self._without_end(list(each))
        return [each if isinstance(each, RowAnswer) else self._refusal(each, room=1) or each for each in ids]

    def documents(self, prompts: Sequence[Prompt], *, room: int = 0) -> list[Document | RowAnswer]:
        """Token ids and targets of each prompt with its completion.

        `with_end`, the same as in training. Otherwise the text that was given, without the end token.

        `room`: positions that the engine needs behind the tokens.
        """
        ready = [self._ready(prompt) for prompt in prompts]
        encoded = encode(self.tokenizer, [each for each in ready if isinstance(each, Rendered)])
        found = [next(encoded) if isinstance(each, Rendered) else each for each in ready]
        return [each if isinstance(each, RowAnswer) else self._checked(each, room) for each in found]

    def _text_or_error(self, prompt: Prompt) -> str | RowAnswer | None:
        """Text of a prompt. None if it is tokens."""
        if isinstance(prompt.content, TokenPrompt):
            return None
        try:
            return self._text(prompt)
        except InvalidConversation as error:
            return RowAnswer(error=str(error))

    def _text(self, prompt: Prompt) -> str:
        if isinstance(prompt.content, str):
            return prompt.content
        self._need_template()
        return prompt_text(self.tokenizer, prompt.conversation())

    def _ready(self, prompt: Prompt) -> Rendered | Document | RowAnswer:
        content, begin = prompt.content, self._begin()
        if isinstance(content, TokenPrompt):
            return _as_document(content, prompt)
        end = self.tokenizer.eos_token if prompt.with_end else ""
        if isinstance(content, str):
            if prompt.completion is None:
                return Rendered(begin + content + end, None)
            return prompt_and_completion(begin + content, prompt.completion + end)
        self._need_template()
        try:
            if prompt.completion is not None and not prompt.with_end:
                return prompt_and_completion(self._text(prompt), prompt.completion)
            answer = () if prompt.completion is None else ({"role": "assistant", "content": prompt.completion},)
            train_on: TrainOn = "last" if answer else "assistant"
            rendered = render(self.tokenizer, prompt.conversation(*answer), train_on)
            return rendered if prompt.with_end else without_ends(self.tokenizer, rendered)
        except InvalidConversation as error:
            return RowAnswer(error=str(error))

    def _checked(self, document: Document, room: int) -> Document | RowAnswer:
        if not document.is_target[1:].any():
            return RowAnswer(error="nothing of the text counts: it has no token behind the first one")
        return self._refusal(document.ids, room=room) or document

    def _refusal(self, ids: Sequence[int] | NDArray[np.int32], *, room: int) -> RowAnswer | None:
        length = len(ids)
        if length == 0:
            return RowAnswer(error="the prompt is empty")
        # Elsewhere than on a processor, such a token ends the process.
        if not 0 <= np.min(ids) <= np.max(ids) < len(self.tokenizer):
            error = f"the prompt has a token outside of 0 to {len(self.tokenizer) - 1}"
            return RowAnswer(error=error, input_tokens=length)
        if self.positions is not None and length + room > self.positions:
            return RowAnswer(
                error=f"the prompt has {length} tokens, and the model has {self.positions} positions",
                input_tokens=length,
            )
        return None

    def _need_template(self) -> None:
        if not self.tokenizer.chat_template:
            raise InvalidOption(
                f"the data holds conversations, and the tokenizer of {self.name} has no chat template. Set "
                'chat_template="chatml", or the template that the model was trained with as a Jinja text.'
            )

    def _begin(self) -> str:
        """Text of the tokenizer's begin token, or empty."""
        before: Sequence[int] = self.tokenizer("")["input_ids"]
        is_begin = bool(before) and before[0] == self.tokenizer.bos_token_id
        return str(self.tokenizer.bos_token) if is_begin else ""

    def _without_end(self, ids: list[int]) -> list[int]:
        """Remove the end token that some tokenizers add.

        Nothing can be continued after it.
        """
        is_added = (
            len(ids) > 1
            and ids[-1] == self.tokenizer.eos_token_id
            and self.tokenizer("")["input_ids"][-1:] == [ids[-1]]
        )
        return ids[:-1] if is_added else ids


def _as_document(content: TokenPrompt, prompt: Prompt) -> Document | RowAnswer:
    """Tokens and targets of a prompt of tokens."""
    if prompt.completion is not None or prompt.with_end:
        return RowAnswer(error="tokens are scored as they are: leave completion= and end= out")
    is_target = np.arange(len(content.ids)) >= len(content.ids) - content.targets
    return Document(np.asarray(content.ids, np.int32), is_target)
