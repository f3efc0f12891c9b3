"""Generation for a batch of prompts, by `generate` of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.llm.score.engines.answer_text import AnswerText
from forebay.llm.score.engines.choices import Choices
from forebay.llm.score.engines.engine import RowAnswer, Sampling
from forebay.llm.score.engines.grammar import SchemaTokens
from forebay.llm.source.tokenizers import import_transformers

Ids = NDArray[np.int64]
_GOLDEN, _ROW, _POSITION = (np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7))
_U30, _U27, _U31, _U11 = (np.uint64(each) for each in (30, 27, 31, 11))
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Generation with one model and one `Sampling`.

    Attributes:
        model: Causal language model of the transformers library.
        tokenizer: Its tokenizer.
        ends: Tokens that end an answer.
        positions: Most tokens of a prompt with its answer. None: no limit.
        sampling: Rules by which tokens are chosen.
        choices: The only texts that may be generated. None: any text.
        grammar: Tokens and grammar to which texts are held. None: any text.
    """

    model: Any
    tokenizer: Any
    ends: frozenset[int]
    positions: int | None
    sampling: Sampling
    choices: Choices | None = None
    grammar: tuple[SchemaTokens, str] | None = None

    def answers(self, questions: list[list[int]], rows: list[int]) -> list[RowAnswer]:
        """Answer questions of at least one token each.

        Rows that have ended stay in the batch until the last one.
        """
        lengths = np.array([len(each) for each in questions])
        text = AnswerText(tokenizer=self.tokenizer, stop=self.sampling.stop)
        end = _EndOfAnswers(text=text, ends=self.ends, limits=self._limits(lengths).tolist())
        tokens, mask = _left_padded(questions, lengths, self.model.device)
        width = tokens.shape[1]
        held = [] if self.grammar is None else [self.grammar[0].held(self.grammar[1], len(questions), width)]
        draws = [] if self.sampling.temperature == 0 else [_RowDraws(self.sampling, rows, width)]
        self.model.generate(
            input_ids=tokens,
            attention_mask=mask,
            # Draws are the largest scores, after the noise of each row.
            generation_config=import_transformers().GenerationConfig(
                max_new_tokens=max(end.limits), do_sample=False, use_cache=True
            ),
            logits_processor=[*held, *draws],
            prefix_allowed_tokens_fn=None if self.choices is None else _Allowed(self.choices, width),
            stopping_criteria=[end],
        )
        return [
            text.answer(len(question), ids, is_ended=ids[-1] in self.ends)
            for question, ids in zip(questions, end.generated, strict=True)
        ]

    def _limits(self, lengths: Ids) -> Ids:
        """Largest number of tokens per answer.

        `max_tokens`, or the positions that are left.
        """
        most = np.full_like(lengths, self.sampling.max_tokens)
        return most if self.positions is None else np.minimum(most, self.positions - lengths)


class _EndOfAnswers:
    """Stopping criterion that collects the tokens of each answer."""

    def __init__(self, *, text: AnswerText, ends: frozenset[int], limits: list[int]) -> None:
        self._text, self._ends, self.limits = text, ends, limits
        self.generated: list[list[int]] = [[] for _ in limits]
        self._is_done = [False] * len(limits)

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:  # noqa: ARG002 - as transformers calls it
        """Whether each row has ended, bool [rows]."""
        for number, token in enumerate(input_ids[:, -1].tolist()):
            if not self._is_done[number]:
                ids = self.generated[number]
                ids.append(token)
                is_full = len(ids) == self.limits[number]
                self._is_done[number] = is_full or token in self._ends or self._text.has_stop(ids)
        return torch.tensor(self._is_done, device=input_ids.device)


class _RowDraws:
    """Logits processor that draws tokens independently of the batch.

    The largest score is the draw of the row. Prompts have `width` tokens.
    """

    def __init__(self, sampling: Sampling, rows: list[int], width: int) -> None:
        self._sampling, self._rows, self._width = sampling, np.asarray(rows, np.int64), width

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores float32 [rows, entries] of the next tokens."""
        return drawn_scores(scores, self._rows, input_ids.shape[1] - self._width, self._sampling)


class _Allowed:
    """Allowed next tokens of a row.

    Its prompt has `width` tokens.
    """

    def __init__(self, choices: Choices, width: int) -> None:
        self._choices, self._width = choices, width

    def __call__(self, _batch: int, ids: Tensor) -> list[int]:
        """Allowed tokens, of which there is at least one."""
        return self._choices.next_tokens(ids[self._width :].tolist())


def _left_padded(questions: list[list[int]], lengths: Ids, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask int64 [rows, longest]."""
    longest = int(lengths.max())
    tokens, mask = np.zeros((len(questions), longest), np.int64), np.zeros((len(questions), longest), np.int64)
    for number, ids in enumerate(questions):
        tokens[number, longest - len(ids) :], mask[number, longest - len(ids) :] = ids, 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)


def gumbel_noise(seed: int, rows: NDArray[np.int64], positions: NDArray[np.int64], entries: int) -> NDArray[np.float32]:
    """Gumbel noise, float32 [rows, entries].

    The argmax of logits / temperature + noise is a draw from their softmax.

    The noise of an entry is a hash of seed, row, position and entry (the finaliser of splitmix64, twice; Steele et
    al., OOPSLA 2014). So it is the same in every batch, process and version of NumPy.
    """
    with np.errstate(over="ignore"):
        key = _mixed(np.uint64(seed) * _GOLDEN + rows.astype(np.uint64) * _ROW)
        key = _mixed(key + positions.astype(np.uint64) * _POSITION)
        bits = _mixed(key[:, None] + np.arange(1, entries + 1, dtype=np.uint64) * _GOLDEN)
    uniform = ((bits >> _U11).astype(np.float64) + 0.5) * 2.0**-53
    noise: NDArray[np.float32] = -np.log(-np.log(uniform)).astype(np.float32)
    return noise


def drawn_scores(logits: Tensor, rows: NDArray[np.int64], position: int, sampling: Sampling) -> Tensor:
    """Scores whose argmax is each row's draw, float32 [rows, entries].

    `position` counts generated tokens.

    `sampling` has a temperature above 0.
    """
    scaled = _truncated(logits / sampling.temperature, sampling)
    noise = gumbel_noise(sampling.seed, rows, np.full_like(rows, position), logits.shape[1])
    return scaled + torch.from_numpy(noise).to(logits.device)


def _truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    """Apply `top_k` and `top_p`: other tokens get -inf.

    The most likely token always stays.
    """
    if 0 < sampling.top_k < logits.shape[1]:
        least = logits.topk(sampling.top_k, dim=1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:
        ordered, index = logits.sort(dim=1, descending=True, stable=True)
        before = ordered.softmax(dim=1).cumsum(dim=1) - ordered.softmax(dim=1)
        left_out = torch.zeros_like(before, dtype=torch.bool).scatter(1, index, before >= sampling.top_p)
        logits = logits.masked_fill(left_out, -torch.inf)
    return logits


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> _U30)) * _FIRST
    value = (value ^ (value >> _U27)) * _SECOND
    mixed: NDArray[np.uint64] = value ^ (value >> _U31)
    return mixed
