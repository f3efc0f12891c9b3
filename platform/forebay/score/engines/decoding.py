"""Generation token by token, for a batch of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.score.engines.choices import Choices
from forebay.score.engines.engine import RowAnswer, Sampling
from forebay.score.engines.sampling import choose

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Generation with one model and one `Sampling`. `ends` are the tokens that end an answer.

    `choices` are the only texts that may be generated, None for any text.
    """

    model: Any
    tokenizer: Any
    ends: frozenset[int]
    positions: int | None
    sampling: Sampling
    choices: Choices | None = None

    def answers(self, questions: list[list[int]], rows: list[int]) -> list[RowAnswer]:
        """RowAnswer of each question, which has at least one token. Generates until the last one has ended."""
        generated = self._generate(questions, np.asarray(rows, np.int64))
        return [self._answer(question, ids) for question, ids in zip(questions, generated, strict=True)]

    def _generate(self, questions: list[list[int]], rows: Ids) -> list[list[int]]:
        device = self.model.device
        lengths = np.array([len(each) for each in questions])
        limits = self._limits(lengths)
        tokens, mask, cache = *_left_padded(questions, lengths, device), None
        generated: list[list[int]] = [[] for _ in questions]
        is_alive = np.ones(len(questions), bool)
        places = (mask.cumsum(dim=1) - 1).clamp_min(0)
        for position in range(int(limits.max())):
            out = self.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, logits = out.past_key_values, self._allowed(out.logits[:, -1].float(), generated)
            chosen = choose(logits, rows, position, self.sampling)
            for number, token in enumerate(chosen.tolist()):
                if is_alive[number]:
                    generated[number].append(token)
                    is_alive[number] = position + 1 < limits[number] and not self._ended(generated[number])
            if not is_alive.any():
                break
            tokens, places = chosen[:, None], places[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(questions), 1)], dim=1)
        return generated

    def _limits(self, lengths: Ids) -> Ids:
        """Most tokens of each answer: those that were asked for, or the positions that are left."""
        most = np.full_like(lengths, self.sampling.max_tokens)
        return most if self.positions is None else np.minimum(most, self.positions - lengths)

    def _allowed(self, logits: Tensor, generated: Sequence[list[int]]) -> Tensor:
        if self.choices is None:
            return logits
        kept = torch.full_like(logits, -torch.inf)
        for number, ids in enumerate(generated):
            allowed = self.choices.next_tokens(ids)
            kept[number, allowed] = logits[number, allowed]
        return kept

    def _ended(self, ids: list[int]) -> bool:
        return ids[-1] in self.ends or (bool(self.sampling.stop) and self._cut(self._text(ids)) is not None)

    def _answer(self, question: list[int], ids: list[int]) -> RowAnswer:
        is_ended = ids[-1] in self.ends
        text = self._text(ids[:-1] if is_ended else ids)
        cut = self._cut(text)
        return RowAnswer(
            text=text if cut is None else text[:cut],
            finish_reason="stop" if is_ended or cut is not None else "length",
            input_tokens=len(question),
            output_tokens=len(ids),
        )

    def _cut(self, text: str) -> int | None:
        """Place of the first stop text, None if there is none."""
        found = [place for stop in self.sampling.stop if (place := text.find(stop)) >= 0]
        return min(found, default=None)

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def _left_padded(questions: list[list[int]], lengths: Ids, device: torch.device) -> tuple[Tensor, Tensor]:
    longest = int(lengths.max())
    tokens, mask = np.zeros((len(questions), longest), np.int64), np.zeros((len(questions), longest), np.int64)
    for number, ids in enumerate(questions):
        tokens[number, longest - len(ids) :], mask[number, longest - len(ids) :] = ids, 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)
