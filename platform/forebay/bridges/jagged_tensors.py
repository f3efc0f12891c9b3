"""Lists of a batch without padding.

Also as a `KeyedJaggedTensor` of torchrec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forebay.errors import InvalidOption, MissingPackage


def jagged(batch: Mapping[str, Any], names: str | Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the lists of features without padding.

    Values [total] and lengths, int32 [features * rows].

    The lists of the first feature come first, in the order of the rows, then the lists of the second one: the layout of
    torchrec. With one feature they are the arguments of `fb.Table`: `table(*jagged(batch, "items"), pool="sum")`.

    A feature is `fb.Ragged`, `fb.Bytes` (a null is an empty list), or an array [rows, k] without lengths, as of
    `fb.Categorical`: k values in each row. The tensors are on the device of the batch. Taking padding out copies the
    values, and on a GPU the host waits for their number. One feature `fb.Ragged(padded=False)` costs neither.

    Raises:
        InvalidOption: No name or a repeated one, an array that the batch lacks or that holds no lists, lengths that
            do not fit it, and integers beside floats.
    """
    keys = _keys(names)
    pairs = [values_and_lengths(batch, key) for key in keys]
    # Promoted to float32, ids from 2**24 on would become other ids.
    if len({values.is_floating_point() for values, _ in pairs}) > 1:
        found = ", ".join(f"{key} {values.dtype}" for key, (values, _) in zip(keys, pairs, strict=True))
        raise InvalidOption(
            f"The features {found} would share one array of values. Call once for the integers and once for the floats."
        )
    if len({len(lengths) for _, lengths in pairs}) > 1:
        found = ", ".join(f"{key} {len(lengths)}" for key, (_, lengths) in zip(keys, pairs, strict=True))
        raise InvalidOption(f"The features have different numbers of rows: {found}. Give features of one batch.")
    if len(pairs) == 1:
        return pairs[0]
    return torch.cat([values for values, _ in pairs]), torch.cat([lengths for _, lengths in pairs])


def keyed_jagged(batch: Mapping[str, Any], names: str | Sequence[str]) -> Any:
    """Return features of a batch as a `torchrec.KeyedJaggedTensor`.

    Their names are the keys, in this order.

    Takes the features that `jagged` takes. Raises `MissingPackage` without torchrec.
    """
    try:
        from torchrec import KeyedJaggedTensor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"keyed_jagged(...) needs the package {error.name}. Run: pip install torchrec fbgemm-gpu, in the versions "
            "for your torch. Without torchrec, fb.bridges.jagged gives the same values and lengths.",
            package=error.name,
        ) from error
    values, lengths = jagged(batch, names)
    keys = _keys(names)
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, stride=len(lengths) // len(keys))


def _keys(names: str | Sequence[str]) -> list[str]:
    keys = [names] if isinstance(names, str) else list(names)
    if not keys or len(set(keys)) < len(keys):
        raise InvalidOption(f"The features {keys} are none, or name one twice. Name each feature once.")
    return keys


def values_and_lengths(batch: Mapping[str, Any], name: str) -> tuple[Tensor, Tensor]:
    """Return the values and lengths of one feature.

    Values [total] and lengths, int32 [rows]. Copies nothing that has no padding.

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
    """Raise for lengths beyond the values.

    They would make a kernel of torchrec read other memory.
    """
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
