"""Safetensors files written tensor by tensor.

The library's own writer holds all tensors of a file in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO

import torch
from torch import Tensor

FILE_BYTES = 5_000_000_000
"""Most bytes of a file, if it has more than one tensor: as the transformers library writes them."""

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A named tensor of a model's folder.

    `read` returns it in any dtype, and it is written as `dtype`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def split_files(weights: Sequence[Weight], stem: str, most_bytes: int | None = None) -> dict[str, list[Weight]]:
    """Group weights into files, in order.

    The names are `model.safetensors`, or `model-00001-of-00002.safetensors`, ...
    """
    most_bytes = FILE_BYTES if most_bytes is None else most_bytes
    groups: list[list[Weight]] = [[]]
    for weight in weights:
        if groups[-1] and sum(each.num_bytes for each in groups[-1]) + weight.num_bytes > most_bytes:
            groups.append([])
        groups[-1].append(weight)
    if len(groups) == 1:
        return {f"{stem}.safetensors": groups[0]}
    return {f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors": each for number, each in enumerate(groups, 1)}


def write_safetensors(
    out: IO[bytes], weights: Sequence[Weight], wrote: Callable[[int], object] = lambda _bytes: None
) -> None:
    """Write a safetensors file.

    Holds one tensor in memory at a time. `wrote` is called with the bytes of each.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        begin, end = end, end + weight.num_bytes
        header[weight.name] = {
            "dtype": _TYPES[weight.dtype],
            "shape": list(weight.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    out.write(len(text).to_bytes(8, "little") + text)
    for weight in weights:
        values = weight.read().detach().to(weight.dtype).contiguous()
        assert tuple(values.shape) == weight.shape, f"{weight.name} has the shape {tuple(values.shape)}"
        if values.numel():
            out.write(values.reshape(-1).view(torch.uint8).numpy().data)
        wrote(weight.num_bytes)


def index_text(files: dict[str, list[Weight]]) -> str:
    """Text of the index: the file of each tensor."""
    total = sum(weight.num_bytes for weights in files.values() for weight in weights)
    weight_map = {weight.name: file for file, weights in files.items() for weight in weights}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2, sort_keys=True)
