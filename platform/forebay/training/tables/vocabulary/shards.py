"""Shards of 64-bit ids, and their owners.

Pure arithmetic, the same in every world.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forebay.errors import TooManyRanks
from forebay.training.tables.layout import NUM_SHARDS

SHARD_BITS = 6
_WORD = 1 << 64


def mixed(ids: Tensor) -> Tensor:
    """Mix ids, int64 [n], so that neighbours look random.

    Steele et al. 2014, "SplitMix". Equal ids stay equal.
    """
    found = (ids ^ _shifted(ids, 30)) * _signed(0xBF58476D1CE4E5B9)
    found = (found ^ _shifted(found, 27)) * _signed(0x94D049BB133111EB)
    return found ^ _shifted(found, 31)


def shards_of(words: Tensor) -> Tensor:
    """Return the shards [n] of ids, from 0 to 63.

    `words` are the ids as `mixed` returns them.
    """
    return words & (NUM_SHARDS - 1)


def above_shard(words: Tensor) -> Tensor:
    """Return the remaining bits of `words`, as numbers from 0."""
    return _shifted(words, SHARD_BITS)


def shard_bounds(world_size: int) -> tuple[int, ...]:
    """Return the first shard of each rank, and 64. Raises `TooManyRanks`."""
    if world_size > NUM_SHARDS:
        raise TooManyRanks(
            f"a table has {NUM_SHARDS} shards, and {world_size} workers were to share it. Use {NUM_SHARDS} workers at "
            "most.",
            world_size=world_size,
        )
    return tuple(-(-rank * NUM_SHARDS // world_size) for rank in range(world_size + 1))


def owners(world_size: int, device: torch.device) -> Tensor:
    """Return the rank of each shard [64]."""
    bounds = torch.tensor(shard_bounds(world_size)[1:-1], dtype=torch.int64, device=device)
    return torch.bucketize(torch.arange(NUM_SHARDS, device=device), bounds, right=True)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shift to the right as words without a sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD >> 1 else word
