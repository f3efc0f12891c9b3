"""Replies of a process that builds blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forebay.data.cache.builders.registered_datasets import BuildFailed
from forebay.data.transform.block import BlockArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlock:
    """Reply: the block is in the cache, under its key.

    `sums` are the counters for the requester's counters.
    """

    sums: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryBlock:
    """Reply: the block's arrays.

    It did not fit, or is not to be stored.
    """

    sums: Mapping[str, float]
    rows: int
    arrays: Mapping[str, BlockArray]


Reply: TypeAlias = StoredBlock | InMemoryBlock | BuildFailed | Literal["unknown"]
"""Reply to a request. `unknown` means that the dataset must be registered first."""
