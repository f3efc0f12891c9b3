"""Generated tokens as an answer, for engines that return tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.llm.score.engines.engine import RowAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerText:
    """Text of generated tokens, up to the first stop text."""

    tokenizer: Any
    stop: tuple[str, ...]

    @property
    def end_tokens(self) -> frozenset[int]:
        """Stop texts that are one special token.

        The text of an answer has no special tokens, so only the token itself can be found.
        """
        if not self.stop:
            return frozenset()
        added = self.tokenizer.added_tokens_decoder.values()
        special = {*self.tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
        return frozenset(self.tokenizer.convert_tokens_to_ids(stop) for stop in self.stop if stop in special)

    def answer(self, input_tokens: int, ids: Sequence[int], *, is_ended: bool) -> RowAnswer:
        """Make the answer of generated tokens.

        `is_ended`: the last one is an end token, which is not part of the text.
        """
        text = self._decoded(ids[:-1] if is_ended else ids)
        cut = self._cut(text)
        return RowAnswer(
            text=text if cut is None else text[:cut],
            finish_reason="stop" if is_ended or cut is not None else "length",
            input_tokens=input_tokens,
            output_tokens=len(ids),
        )

    def has_stop(self, ids: Sequence[int]) -> bool:
        """Whether the text of the tokens contains a stop text."""
        return bool(self.stop) and self._cut(self._decoded(ids)) is not None

    def _cut(self, text: str) -> int | None:
        """Index of the first stop text, or None."""
        found = [index for stop in self.stop if (index := text.find(stop)) >= 0]
        return min(found, default=None)

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
