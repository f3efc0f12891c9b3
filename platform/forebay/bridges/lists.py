"""Lists of one feature of a batch, as values and lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forebay.errors import InvalidOption


def values_and_lengths(batch: Mapping[str, Any], name: str) -> tuple[Tensor, Tensor]:
    """Values [total] and lengths, int32 [rows], of a feature. Copies nothing that has no padding.

    Raises:
        InvalidOption: An array that the batch lacks or that holds no lists, and lengths that do not fit it.
    """
    if name not in batch:
        raise InvalidOption(
            f"The batch has no array {name!r}. It has {', '.join(map(repr, batch))}. Name features of the transform.",
            name=name,
        )
    values, has_lengths = torch.as_tensor(batch[name]), f"{name}_lengths" in batch
    if values.dim() != 2 and not (values.dim() == 1 and has_lengths):
        raise InvalidOption(
            f"Array {name!r} has shape {list(values.shape)}. Name a feature of shape [rows, k], such as fb.Ragged.",
            name=name,
        )
    if not has_lengths:
        rows, width = values.shape
        return values.reshape(-1), torch.full((rows,), width, dtype=torch.int32, device=values.device)
    lengths = torch.as_tensor(batch[f"{name}_lengths"])
    _validate_lengths(name, values, lengths, is_made_here=name in getattr(batch, "lists", ()))
    if values.dim() == 1:
        return values, lengths.to(torch.int32)
    # fb.Bytes gives a null the length -1.
    lengths = lengths.to(torch.int32).clamp(min=0)
    return values[torch.arange(values.shape[1], device=values.device) < lengths.unsqueeze(1)], lengths


def _validate_lengths(name: str, values: Tensor, lengths: Tensor, *, is_made_here: bool) -> None:
    """Raise for lengths beyond the values: they would make a kernel of torchrec read other memory."""
    fits = lengths.dim() == 1 and not lengths.is_floating_point()
    if values.dim() == 2:
        rows, width = values.shape
        fits = fits and len(lengths) == rows and not (rows and int(lengths.max()) > width)
        remedy = f"Give {rows} integers of at most {width}."
    else:
        # A loader has counted the values. Reading the lengths again would make the host wait for the GPU.
        is_known = is_made_here and values.is_cuda
        fits = fits and (is_known or (not (lengths < 0).any() and int(lengths.sum()) == len(values)))
        remedy = f"Give integers from 0 whose sum is {len(values)}."
    if not fits:
        raise InvalidOption(
            f"Array '{name}_lengths' does not fit {name!r} of shape {list(values.shape)}. {remedy}", name=name
        )
