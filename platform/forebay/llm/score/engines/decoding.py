"""Generation token by token, for a batch of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.llm.score.engines.answer_text import AnswerText
from forebay.llm.score.engines.choices import Choices
from forebay.llm.score.engines.engine import RowAnswer, Sampling
from forebay.llm.score.engines.sampling import choose

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
        text = AnswerText(tokenizer=self.tokenizer, stop=self.sampling.stop)
        generated = self._generate(questions, np.asarray(rows, np.int64), text)
        return [
            text.answer(len(question), ids, is_ended=ids[-1] in self.ends)
            for question, ids in zip(questions, generated, strict=True)
        ]

    def _generate(self, questions: list[list[int]], rows: Ids, text: AnswerText) -> list[list[int]]:
        lengths = np.array([len(each) for each in questions])
        limits = self._limits(lengths)
        batch = _Batch(self.model, *_left_padded(questions, lengths, self.model.device))
        generated: list[list[int]] = [[] for _ in questions]
        there, is_alive = np.arange(len(questions)), np.ones(len(questions), bool)
        for position in range(int(limits.max())):
            logits = self._allowed(batch.logits(), [generated[number] for number in there])
            chosen = choose(logits, rows[there], position, self.sampling)
            for number, token in zip(there.tolist(), chosen.tolist(), strict=True):
                if is_alive[number]:
                    generated[number].append(token)
                    is_alive[number] = position + 1 < limits[number] and not (
                        token in self.ends or text.has_stop(generated[number])
                    )
            left = np.flatnonzero(is_alive[there])
            if not len(left):
                break
            if batch.can_shrink and 2 * len(left) <= len(there):
                there, chosen = there[left], chosen[torch.from_numpy(left).to(chosen.device)]
                batch.keep(torch.from_numpy(left))
            batch.append(chosen)
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


class _Batch:
    """Rows that are generated together, and what the model keeps of them. `mask` is int64 [rows, tokens so far]."""

    def __init__(self, model: Any, tokens: Tensor, mask: Tensor) -> None:
        from forebay.llm.score.engines.growing_cache import growing_cache  # noqa: PLC0415 - slow to import

        self._model, self._tokens, self._mask = model, tokens, mask
        self._places = (mask.cumsum(dim=1) - 1).clamp_min(0)
        self._cache = growing_cache(model)
        self.can_shrink = self._cache is not None
        """Whether rows can leave."""

    def logits(self) -> Tensor:
        """Logits float32 [rows, entries] behind the newest tokens."""
        out = self._model(
            input_ids=self._tokens,
            attention_mask=self._attended(),
            position_ids=self._places,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = out.past_key_values
        logits: Tensor = out.logits[:, -1].float()
        return logits

    def append(self, chosen: Tensor) -> None:
        """Add the next token of each row."""
        self._tokens, self._places = chosen[:, None], self._places[:, -1:] + 1
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(chosen), 1)], dim=1)

    def keep(self, rows: Tensor) -> None:
        """Let all other rows leave."""
        rows = rows.to(self._mask.device)
        self._mask, self._places = self._mask[rows], self._places[rows]
        assert self._cache is not None
        self._cache.batch_select_indices(rows)

    def _attended(self) -> Tensor:
        """Mask of the model. For one new token, it is the tokens themselves: transformers takes longer to find that."""
        implementation = self._model.config._attn_implementation  # noqa: SLF001 - it has no public name
        is_plain = self.can_shrink and implementation == "sdpa"
        return self._mask.bool()[:, None, None] if is_plain and self._tokens.shape[1] == 1 else self._mask


def _left_padded(questions: list[list[int]], lengths: Ids, device: torch.device) -> tuple[Tensor, Tensor]:
    longest = int(lengths.max())
    tokens, mask = np.zeros((len(questions), longest), np.int64), np.zeros((len(questions), longest), np.int64)
    for number, ids in enumerate(questions):
        tokens[number, longest - len(ids) :], mask[number, longest - len(ids) :] = ids, 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)
