"""Replies to a request for a block, from the cache actor of a node or from a data node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from forebay.data.transform.block import BlockArray
from forebay.errors import ForebayError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlock:
    """Reply: the block is in the cache, under its key. `sums` are the counters for the requester's counters."""

    sums: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryBlock:
    """Reply: the block did not fit, or is not to be stored, so its arrays are part of the reply."""

    sums: Mapping[str, float]
    rows: int
    arrays: Mapping[str, BlockArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailed:
    """Reply: the block cannot be built. `trace` is the traceback in the actor."""

    error: ForebayError
    trace: str
    sums: Mapping[str, float] = field(default_factory=dict)


Reply: TypeAlias = StoredBlock | InMemoryBlock | BuildFailed | Literal["unknown"]
"""Reply to a request. `unknown` means that the dataset must be registered first."""
