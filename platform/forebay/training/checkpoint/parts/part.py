"""A part of a checkpoint.

It has the chunks of tensors that one rank writes, as raw bytes one after another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.encoded import BLOCK_BYTES, Bytes, PartFacts, block_sums, sum_of
from forebay.training.checkpoint.parts.contents import Region, StoredChunk, StoredTensor, contents_text, flat_regions
from forebay.training.checkpoint.parts.verified_part import VerifiedPart
from forebay.training.checkpoint.serialization import fill

_PIECE_BYTES = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChunk:
    """A region of a logical tensor that this rank writes.

    `values` has the region's sizes, on any device.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    values: Tensor = field(repr=False)

    @staticmethod
    def regions(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Sequence[Region]:  # noqa: ARG004
        """Tensor regions covered by a chunk, in storage order.

        The chunk has the shape `sizes`.
        """
        return [(offsets, sizes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatChunk(LocalChunk):
    """Successive elements of a tensor that this rank writes.

    In C order. `offsets` is the position of the first.
    """

    @staticmethod
    def regions(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Sequence[Region]:
        """Tensor regions covered by a chunk, in storage order.

        The chunk has the shape `sizes`.
        """
        return flat_regions(shape, offsets[0], offsets[0] + prod(sizes))


ChunkLayout: TypeAlias = tuple[str, type[LocalChunk], torch.dtype, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Name, kind, dtype, shape, offsets and sizes of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReceipt:
    """Facts of a written part.

    Its size, the checksums of its blocks, and the tensors in it (`contents_text`).

    Ranks exchange receipts at every checkpoint. As text, a thousand tensors cost them a few milliseconds, and it is the
    same text while the tensors lie as before.
    """

    number: int
    num_bytes: int
    sums: tuple[int, ...] = field(repr=False)
    contents: str = field(repr=False)
    node: str = ""
    """Node whose memory has the part. Empty if it is in storage."""
    path: str = ""
    """File in memory from which rank 0 of the same machine writes the part. Empty if it is written."""

    @property
    def facts(self) -> PartFacts:
        return PartFacts(number=self.number, num_bytes=self.num_bytes, checksum=sum_of(self.sums), node=self.node)


def write_part(number: int, chunks: Mapping[str, LocalChunk], buffer: ReusableBuffer) -> PartReceipt:
    """Write `chunks`, by name, into an empty `buffer`.

    Chunks without elements take no room.
    """
    buffer.reset()
    tensors = [chunk.values.detach() for chunk in chunks.values() if chunk.values.numel()]
    buffer.reserve(sum(each.nbytes for each in tensors))
    sums = list[int]()
    if any(map(_is_on_gpu, tensors)):
        # Straight into the buffer, whose pages are locked. Checksums later: a GPU writes past the processor's cache.
        sources = [_bytes_of(each) for each in tensors]
        for each in sources:
            buffer.seek(each.nbytes, os.SEEK_CUR)
        fill(buffer, sources)
    else:
        for each in tensors:
            _write(_bytes_of(each.cpu()).numpy().data, buffer, sums)
    written = buffer.written()
    sums += block_sums(written[len(sums) * BLOCK_BYTES :])
    layout = tuple(
        (name, type(chunk), chunk.values.dtype, chunk.shape, chunk.offsets, tuple(chunk.values.shape))
        for name, chunk in chunks.items()
    )
    return PartReceipt(number=number, num_bytes=len(written), sums=tuple(sums), contents=_contents(number, layout))


@lru_cache(maxsize=2)
def _contents(number: int, layout: tuple[ChunkLayout, ...]) -> str:
    """Contents of a part whose chunks lie in order.

    The same at every checkpoint of a run.
    """
    tensors, begin = list[StoredTensor](), 0
    for name, kind, dtype, shape, offsets, sizes in layout:
        stored = list[StoredChunk]()
        for first, block in kind.regions(shape, offsets, sizes) if prod(sizes) else ():
            stored.append(StoredChunk(offsets=first, sizes=block, part=number, begin=begin))
            begin += prod(block) * dtype.itemsize
        kept = str(dtype).removeprefix("torch.")
        tensors.append(StoredTensor(name=name, dtype=kept, shape=shape, chunks=tuple(stored)))
    return contents_text(tensors)


def read_region(tensor: StoredTensor, region: Region, parts: Mapping[int, VerifiedPart]) -> Tensor:
    """Return `region` of a tensor, in main memory.

    Its values come from whichever chunks have it.

    Reads only the rows of the first dimension that are needed. Raises `CorruptCheckpoint`.
    """
    offsets, sizes = region
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    found = torch.empty(sizes, dtype=dtype, device="cpu")
    for chunk in tensor.chunks:
        starts = [max(a, b) for a, b in zip(offsets, chunk.offsets, strict=True)]
        stops = [min(a + n, b + m) for a, n, b, m in zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True)]
        if all(start < stop for start, stop in zip(starts, stops, strict=True)):
            source, target = _rows(chunk, dtype, starts, stops, parts[chunk.part]), found
            for dim, (start, stop) in enumerate(zip(starts, stops, strict=True)):
                source = source.narrow(dim, start - (starts[0] if dim == 0 else chunk.offsets[dim]), stop - start)
                target = target.narrow(dim, start - offsets[dim], stop - start)
            target.copy_(source)
    return found


def _rows(
    chunk: StoredChunk, dtype: torch.dtype, starts: Sequence[int], stops: Sequence[int], part: VerifiedPart
) -> Tensor:
    """Rows `starts[0]` to `stops[0]` of a chunk.

    With all of its further dimensions.
    """
    row = dtype.itemsize
    for size in chunk.sizes[1:]:
        row *= size
    first, stop = (starts[0] - chunk.offsets[0], stops[0] - chunk.offsets[0]) if chunk.sizes else (0, 1)
    content = bytearray(part.read(chunk.begin + first * row, chunk.begin + stop * row))
    shape = [stop - first, *chunk.sizes[1:]] if chunk.sizes else []
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


def _write(content: Bytes, buffer: ReusableBuffer, sums: list[int]) -> None:
    """Append `content`, and the checksums of complete blocks.

    Those go to `sums`.

    A block is read again while it is in the processor's cache: in one pass after the last byte, checksums take a third
    of the time.
    """
    for begin in range(0, len(content), _PIECE_BYTES):
        buffer.write(content[begin : begin + _PIECE_BYTES])
        complete = buffer.num_bytes // BLOCK_BYTES
        if complete > len(sums):
            sums += block_sums(buffer.written()[len(sums) * BLOCK_BYTES : complete * BLOCK_BYTES])


def _is_on_gpu(values: Tensor) -> bool:
    return values.is_cuda


def _bytes_of(values: Tensor) -> Tensor:
    return values.contiguous().reshape(-1).view(torch.uint8)
