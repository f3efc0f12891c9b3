"""Rows that several ranks compute together, each a part of their tokens.

Jacobs et al. 2023, arXiv 2309.14509 (Ulysses): for attention, ranks exchange tokens for heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption
from forebay.llm.attention import can_attend_by_documents, packing_of_rows
from forebay.llm.packing import START, TARGET, PackedRows
from forebay.llm.source.tokenizers import import_transformers
from forebay.llm.token_batch import IGNORED, TokenBatch
from forebay.llm.tokens import TARGETS, TOKENS
from forebay.training.collectives.torch_collective import group_of
from forebay.world import World

AllReduce = Callable[[NDArray[Any]], NDArray[Any]]
EXACT = frozenset(
    {
        *("cohere", "gemma", "gemma2", "gemma3_text", "glm4", "granite", "llama", "mistral", "mixtral", "olmo2"),
        *("phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "starcoder2"),
    }
)
"""Architectures whose tokens meet in attention alone, which a test shows of each."""
_OF_LENGTH = ("dynamic", "longrope")
"""Position embeddings that depend on the longest position of a pass."""
_PREFIX = "exchanged_"


def check_exchangeable(model: Any, ranks: int) -> None:
    """Check that `ranks` ranks can compute rows of `model` together.

    Raises `InvalidOption` for another architecture than those of `EXACT`, and for heads that cannot be divided.
    """
    option, config = f"context_parallel={ranks}", model.config
    if config.model_type not in EXACT or not can_attend_by_documents(model):
        raise InvalidOption(
            f"{option} is not known to be exact for model_type={config.model_type!r}: layers with a state or a "
            f"convolution need all tokens of a row. It is for {', '.join(sorted(EXACT))}. Leave it out.",
            option="context_parallel",
        )
    text = str(getattr(config, "rope_parameters", None))
    if found := [each for each in _OF_LENGTH if f"'{each}'" in text]:
        raise InvalidOption(
            f"{option}: the position embedding of the model (rope_type={found[0]!r}) depends on the longest position "
            "of a pass, of which a rank sees a part. Leave context_parallel out.",
            option="context_parallel",
        )
    if config.num_attention_heads % ranks:
        raise InvalidOption(
            f"{option} cannot divide {config.num_attention_heads} attention heads. Set it to a divisor of them.",
            option="context_parallel",
            heads=config.num_attention_heads,
        )


def exchange_heads(model: Any) -> None:
    """Let the attention of `model` compute rows of several ranks, where a pass has such."""
    transformers = import_transformers()
    own = model.config._attn_implementation  # noqa: SLF001 - transformers has no public name for it
    attend, mask = transformers.AttentionInterface()[own], transformers.AttentionMaskInterface()[own]
    transformers.AttentionInterface.register(_PREFIX + own, partial(_attend, attend))
    transformers.AttentionMaskInterface.register(_PREFIX + own, partial(_mask, mask))
    model.set_attn_implementation(_PREFIX + own)


class ContextRanks:
    """Ranks that compute rows together, seen by one of them.

    The world is cut into groups of `size` ranks. Each computes the rows that its ranks have loaded, all of its ranks
    the same rows at the same time. Ranks that are left over give their rows to a group, and pass rows without targets
    through the model, as ranks must call it equally often.

    All ranks call every method alike.
    """

    def __init__(self, world: World, size: int) -> None:
        """Raises `InvalidOption` for a world of fewer ranks, and without a process group of torch."""
        if world.size < size or not dist.is_initialized():
            raise InvalidOption(
                f"context_parallel={size} needs {size} workers of a driver with a process group of torch (local, "
                f"ray), and there are {world.size}. Set min_workers={size} or more, or leave it out.",
                option="context_parallel",
            )
        self._world, self.size = world, size
        groups = world.size // size
        self._families = [
            [*range(number * size, (number + 1) * size), *range(groups * size + number, world.size, groups)]
            for number in range(groups)
        ]
        for family in self._families:
            whole = group_of(family)
            computing = group_of(family[:size]) if len(family) > size else whole
            if world.rank in family:
                self._family, self._whole, self.group = family, whole, computing
        self.index = self._family.index(world.rank)

    @property
    def is_spare(self) -> bool:
        """Whether this rank computes no rows."""
        return self.index >= self.size

    def gathered(self, batch: Batch, all_reduce: AllReduce) -> Batch:
        """Rows of this rank's group, with its own share of their targets.

        As many on each rank: the last ones may be empty rows.

        Raises `InvalidOption` for rows whose tokens cannot be divided.
        """
        words: PackedRows = batch.on_host(TOKENS)
        length = words.shape[1]
        if length % self.size:
            raise InvalidOption(
                f"context_parallel={self.size} cannot divide rows of {length} tokens. Set seq_len to a multiple of it.",
                option="context_parallel",
            )
        own = words if batch.weight > 0 else words[:0]
        counts = np.zeros(self._world.size, np.int64)
        counts[self._world.rank] = len(own)
        counts = all_reduce(counts)
        most = max(int(counts[family].sum()) for family in self._families)
        rows = self._rows_of_family(own, counts[self._family])
        if self.is_spare:
            rows = np.zeros((0, length), np.int32)
        rows = np.concatenate([rows, np.zeros((most - len(rows), length), np.int32)])
        rows[:, 0] |= START
        if self.is_spare:
            rows = rows[:, : length // self.size]
        found = batch.with_arrays(
            {TOKENS: torch.from_numpy(rows), TARGETS: torch.from_numpy(self.own_targets(rows).sum(1, dtype=np.int32))}
        )
        found.num_rows, found.weight = most, 1.0
        return found.to(batch[TOKENS].device)

    def _rows_of_family(self, rows: PackedRows, counts: NDArray[np.int64]) -> PackedRows:
        """Rows of all ranks of the family, by rank."""
        room = np.zeros((int(counts.max()), rows.shape[1]), np.int32)
        room[: len(rows)] = rows
        parts = [torch.empty(room.shape, dtype=torch.int32) for _ in counts]
        dist.all_gather(parts, torch.from_numpy(room), group=self._whole)
        return np.concatenate([part.numpy()[:count] for part, count in zip(parts, counts, strict=True)])

    def own(self, values: Any) -> Any:
        """This rank's columns of whole rows [rows, tokens]."""
        if self.is_spare:
            return values
        length = values.shape[1] // self.size
        return values[:, self.index * length : (self.index + 1) * length]

    def own_tokens(self, tokens: TokenBatch) -> TokenBatch:
        """This rank's tokens. The label of each is that of the token behind it."""
        following = torch.nn.functional.pad(tokens.labels[:, 1:], (0, 1), value=IGNORED)
        return TokenBatch(self.own(tokens.input_ids), self.own(following), self.own(tokens.position_ids))

    def own_targets(self, words: PackedRows) -> NDArray[np.bool_]:
        """Whether the token behind each of this rank's tokens is a target."""
        is_target = np.zeros(words.shape, bool)
        is_target[:, :-1] = (words[:, 1:] & TARGET) != 0
        found: NDArray[np.bool_] = self.own(is_target)
        return found

    def whole(self, values: Tensor) -> Tensor:
        """Whole rows [rows, tokens], of the columns of all ranks."""
        if self.is_spare:
            return values
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self.group)
        return torch.cat(parts, dim=1)

    @contextmanager
    def attending(self, words: PackedRows, positions: Tensor) -> Iterator[None]:
        """Let attention see whole rows, in the block.

        `words` are packed tokens in main memory, and `positions` those in their documents.
        """
        if self.is_spare:
            yield
            return
        before = _ROWS.set(_Rows(self, words.shape[1]))
        try:
            with packing_of_rows(positions):
                yield
        finally:
            _ROWS.reset(before)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a pass, and the ranks that compute them."""

    ranks: ContextRanks
    length: int


@dataclass(frozen=True, slots=True)
class _RowsMask:
    """Mask of whole rows, with the ranks that compute them.

    A layer that is computed again, maybe in another thread, gets it once more.
    """

    ranks: ContextRanks
    mask: Any


_ROWS: ContextVar[_Rows | None] = ContextVar("rows", default=None)


def _mask(make: Callable[..., Any], *positional: Any, **given: Any) -> Any:
    rows = _ROWS.get()
    if rows is None:
        return make(*positional, **given)
    return _RowsMask(rows.ranks, make(*positional, **given | {"q_length": rows.length, "kv_length": rows.length}))


def _attend(
    attend: Callable[..., Any],
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of a rank's heads over whole rows.

    Tensors are [rows, heads, tokens, width], the result [rows, tokens, heads, width].
    """
    if not isinstance(attention_mask, _RowsMask):
        found: tuple[Tensor, None] = attend(module, query, key, value, attention_mask, **options)
        return found
    ranks = attention_mask.ranks
    # Each rank needs the same number of heads of keys.
    copies = ranks.size // math.gcd(ranks.size, key.shape[1])
    if copies > 1:
        key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
    heads = _Heads(module, query.shape[1] // key.shape[1])
    query, key, value = _Exchange.apply(ranks, query, key, value)  # type: ignore[no-untyped-call]
    attended = attend(heads, query, key, value, attention_mask.mask, **options)[0]
    return _Exchange.apply(ranks, attended)[0], None  # type: ignore[no-untyped-call]


class _Heads:
    """Module of an attention, with another number of queries for each key."""

    def __init__(self, module: Any, groups: int) -> None:
        self._module, self.num_key_value_groups = module, groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Exchange(torch.autograd.Function):
    """Exchange of heads for tokens, or back.

    Dimension 1 is cut, and dimension 2 is put together.
    """

    @staticmethod
    def forward(ctx: Any, ranks: ContextRanks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return tuple(_exchanged(ranks, each, 1, 2) for each in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(_exchanged(ctx.ranks, each, 2, 1) for each in gradients)


def _exchanged(ranks: ContextRanks, values: Tensor, cut: int, joined: int) -> Tensor:
    sent = torch.stack(values.chunk(ranks.size, cut))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=ranks.group)
    return torch.cat(received.unbind(), joined)
