"""Answers of a model to held-out prompts.

Decoded greedily, during training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.data.loader.batch import Batch
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.preparation.progress import tell
from forebay.events import Sample
from forebay.llm.loss import of_targets
from forebay.llm.packing import DESIRED, ID_BITS, START, TARGET
from forebay.llm.recipe import Recipe
from forebay.llm.source.hub_model import hub_access
from forebay.llm.source.prepared_tokens import PreparedTokens
from forebay.llm.source.tokenizers import load_tokenizer
from forebay.llm.tokens import TOKENS, token_arrays
from forebay.training.worker.eval_mode import evaluating

NEW_TOKENS = 48
"""Tokens of an answer. Each costs a pass through the model over all prompts."""
MOST_PROMPT = 1024
_TEXT_PROMPT = 32
_ROW_GROUPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPrompt:
    """Tokens before an answer of the data, and the answer's.

    `room` is the most tokens that an answer of the model may have.
    """

    ids: tuple[int, ...]
    wanted: tuple[int, ...]
    room: int = NEW_TOKENS


def held_out_prompts(tokens: PreparedTokens, count: int) -> tuple[HeldOutPrompt, ...]:
    """First held-out prompts with room for an answer.

    Reads the first rows. Says so if there are too few.
    """
    if count == 0:
        return ()
    longest = min(MOST_PROMPT, max(tokens.seq_len - NEW_TOKENS, tokens.seq_len // 2))
    found: list[HeldOutPrompt] = []
    for document in _documents(tokens):
        prompt = prompt_of(document)
        if prompt is not None and len(prompt.ids) <= longest:
            found.append(replace(prompt, room=min(NEW_TOKENS, tokens.seq_len - len(prompt.ids))))
        if len(found) == count:
            return tuple(found)
    tell(f"samples={count}: {len(found)} of the first held-out prompts have at most {longest} tokens")
    return tuple(found)


def _documents(tokens: PreparedTokens) -> Iterator[NDArray[np.int32]]:
    manifest = tokens.prepared.manifest
    reader = RowGroupReader(manifest)
    for index in range(min(len(manifest), _ROW_GROUPS)):
        for batch in reader.read(index).to_batches():
            for row in token_arrays(batch)[TOKENS]:
                # Of a pair, the rejected answer follows the preferred one, or the answer to another prompt.
                found = documents_of(row)[:: 2 if tokens.has_pairs or tokens.has_labels else 1]
                yield from (each for each in found if not tokens.has_labels or each[0] & DESIRED)


def documents_of(row: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """Documents of a row."""
    return np.split(row, np.flatnonzero(row & START)[1:])


def prompt_of(document: NDArray[np.int32]) -> HeldOutPrompt | None:
    """Prompt before the first answer of a document.

    Of text, which is all answer, its beginning. None if nothing of it is a target.
    """
    is_target = (document & TARGET) != 0
    if not is_target.any():
        return None
    ids = tuple((document & ID_BITS).tolist())
    first = int(is_target.argmax())
    if first <= 1:  # the first token of a text may be no target
        first = min(_TEXT_PROMPT, len(ids) // 2)
        return HeldOutPrompt(ids=ids[:first], wanted=ids[first : first + NEW_TOKENS]) if first else None
    is_over = ~is_target[first:]
    stop = first + int(is_over.argmax()) if is_over.any() else len(ids)
    return HeldOutPrompt(ids=ids[:first], wanted=ids[first:stop])


class PromptSampler:
    """Greedy answers of a model to prompts, on one rank."""

    def __init__(self, recipe: Recipe, prompts: Sequence[HeldOutPrompt], device: torch.device) -> None:
        assert recipe.tokenizer is not None
        self._recipe, self._prompts, self._device = recipe, prompts, device
        with hub_access(recipe.model.name):
            self._tokenizer: Any = load_tokenizer(recipe.tokenizer)
        special = {*self._tokenizer.all_special_ids, *self._tokenizer.added_tokens_decoder}
        # A chat ends its turns with another token than its texts.
        ends = {each.wanted[-1] for each in prompts if each.wanted and each.wanted[-1] in special}
        self._ends = ends | {self._tokenizer.eos_token_id}

    def samples(self, model: Any) -> tuple[Sample, ...]:
        """Answers of the model. All ranks call it together."""
        room = min(each.room for each in self._prompts)
        answers = greedy(model, self._recipe, [each.ids for each in self._prompts], self._device, room)
        return tuple(
            Sample(
                prompt=self._tokenizer.decode(prompt.ids, skip_special_tokens=True),
                text=self._text(answer),
                wanted=self._text(prompt.wanted),
            )
            for prompt, answer in zip(self._prompts, answers, strict=True)
        )

    def _text(self, ids: Iterable[int]) -> str:
        kept: list[int] = []
        for each in ids:
            if each in self._ends:
                break
            kept.append(each)
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True)
        return text


def greedy(
    model: Any, recipe: Recipe, prompts: Sequence[Sequence[int]], device: torch.device, new_tokens: int = NEW_TOKENS
) -> list[list[int]]:
    """Decode `new_tokens` tokens behind each prompt.

    The likeliest at each place. One pass over all prompts for each token, of one shape and without a cache, through the
    model as it trains: so it works under every strategy, and all ranks make equally many passes.
    """
    lengths = torch.tensor([len(each) for each in prompts], device=device)
    # Tokens behind the present one are not seen: attention is causal.
    packed = torch.zeros(len(prompts), int(lengths.max()) + new_tokens, dtype=torch.int32, device=device)
    for row, prompt in zip(packed, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt, dtype=torch.int32, device=device)
    packed[:, 0] |= START
    rows = torch.arange(len(prompts), device=device)
    with torch.no_grad(), evaluating(model):
        for place in range(new_tokens):
            batch = Batch({TOKENS: packed.clone()})
            batch[TOKENS][rows, lengths + place] |= TARGET
            with recipe.autocast(device):
                best, _ = of_targets(model, batch, _likeliest, chunk=recipe.loss_chunk)
            packed[rows, lengths + place] = best.to(torch.int32)
    return [row[length : length + new_tokens].tolist() for row, length in zip(packed, lengths.tolist(), strict=True)]


def _likeliest(logits: Tensor, _labels: Tensor) -> Tensor:
    return logits.argmax(dim=-1)
