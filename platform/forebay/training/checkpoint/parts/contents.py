"""Table of the tensors in a checkpoint's parts.

It has the dtype and shape of each, and the location of its chunks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from forebay.training.checkpoint.encoded import CorruptCheckpoint

Region = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes of a block of a tensor, one of each per dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChunk:
    """A region of a tensor in a part.

    It begins at `offsets` and has `sizes` elements. Its bytes lie in part `part` from `begin` on, in C order.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    part: int
    begin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor of a checkpoint, by its logical name.

    `dtype` is a name of torch, such as "float32".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[StoredChunk, ...]

    def validate(self) -> None:
        """Check that the chunks have all elements. Raises `CorruptCheckpoint`."""
        if sum(prod(chunk.sizes) for chunk in self.chunks) != prod(self.shape):
            raise CorruptCheckpoint(f"its chunks of {self.name} do not fill the shape {list(self.shape)}")


def flat_regions(shape: tuple[int, ...], start: int, stop: int) -> list[Region]:
    """Return the regions of elements `start` to `stop`.

    The elements are in C order, and so are the regions.

    >>> flat_regions((3, 4), 2, 9)
    [((0, 2), (1, 2)), ((1, 0), (1, 4)), ((2, 0), (1, 1))]
    """
    if not shape or start >= stop:
        return [((), ())] if start < stop else []
    row = prod(shape[1:])
    first, last = start // row, (stop - 1) // row
    if first == last and len(shape) > 1:
        inner = flat_regions(shape[1:], start - first * row, stop - first * row)
        return [((first, *offsets), (1, *sizes)) for offsets, sizes in inner]
    begin, end = -(-start // row), stop // row
    found = flat_regions(shape, start, begin * row)
    if begin < end:
        found.append(((begin, *(0 for _ in shape[1:])), (end - begin, *shape[1:])))
    return [*found, *flat_regions(shape, end * row, stop)]


def contents_text(tensors: Iterable[StoredTensor]) -> str:
    """Return the tensors of one part as JSON, for `merged`."""
    return json.dumps(to_plain(tensors))


def merged(parts: Iterable[str]) -> dict[str, StoredTensor]:
    """Return all tensors by name, with their chunks.

    The chunks are of all parts. Raises `CorruptCheckpoint`.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, facts in (each for part in parts for each in json.loads(part).items()):
        if name in found:
            found[name]["chunks"] += facts["chunks"]
        else:
            found[name] = facts
    return from_plain(found)


def to_plain(tensors: Iterable[StoredTensor]) -> dict[str, Any]:
    """Return the table as plain containers, for a head."""
    return {
        tensor.name: {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "chunks": [[list(each.offsets), list(each.sizes), each.part, each.begin] for each in tensor.chunks],
        }
        for tensor in tensors
    }


def from_plain(table: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Return the tensors of a table by name. Raises `CorruptCheckpoint`."""
    return {name: _tensor(name, facts) for name, facts in table.items()}


def _tensor(name: str, facts: Mapping[str, Any]) -> StoredTensor:
    chunks = tuple(
        StoredChunk(offsets=tuple(offsets), sizes=tuple(sizes), part=part, begin=begin)
        for offsets, sizes, part, begin in facts["chunks"]
    )
    tensor = StoredTensor(name=name, dtype=facts["dtype"], shape=tuple(facts["shape"]), chunks=chunks)
    tensor.validate()
    return tensor
