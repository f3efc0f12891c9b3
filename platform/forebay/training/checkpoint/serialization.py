"""Conversion of a shard's state to bytes and back."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any, cast

import torch
from torch.utils.serialization import config

from forebay.errors import BadJob
from forebay.runtime.foreign_code import replaced_errors
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.encoded import Bytes


def serialize(state: Mapping[str, Any], buffer: ReusableBuffer) -> None:
    """Append `state` to `buffer`, in the format of `torch.save`."""
    # CRCs take three quarters of the time, and each shard has a checksum. Only `unzip` needs them, not PyTorch.
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(dict(state), cast(IO[bytes], buffer))


class UnreadableState(ValueError):
    """Content that this PyTorch cannot load as a state."""


def deserialize(content: Bytes) -> dict[str, Any]:
    """Return a state in main memory. Raises `UnreadableState`."""
    return _loaded(io.BytesIO(content))


def deserialize_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a state whose tensors map the file.

    Raises `UnreadableState`.
    """
    return _loaded(os.fspath(path), mmap=True)


def _loaded(source: IO[bytes] | str, **options: bool) -> dict[str, Any]:
    # Unpicklers raise exceptions of any type.
    with replaced_errors(lambda error: UnreadableState(str(error))):
        found = torch.load(source, map_location="cpu", weights_only=True, **options)
        if not isinstance(found, dict):
            raise TypeError("it holds no state")
        return found


PLAIN = (torch.Tensor, torch.nn.Parameter, dict, list, tuple, str, int, float, bool, type(None))
NUM_NAMED = 3
_CONTAINERS = (Mapping, list, tuple)


class LoadableTypes:
    """Types that are known to load again.

    A state with any other type is read back before it is written.

    Reading back costs a second copy of the state, so it is done only for the first save and for new types. A scheduler
    may hold None at first, and a NumPy number from the end of the first epoch on.
    """

    def __init__(self) -> None:
        self._seen: set[type] = set()

    def verify(self, state: Mapping[str, Any], written: Bytes) -> None:
        """Check that `written` loads again. Raises `BadJob`.

        `torch.load(weights_only=True)` must accept it. These are the bytes of `state`.
        """
        found: set[type] = set()
        _add_types(state, found)
        if found <= self._seen:
            return
        try:
            deserialize(written)
        except UnreadableState as error:
            strange = [f"{where} is a {_name(value)}" for where, value in _walk(state, "") if type(value) not in PLAIN]
            raise BadJob(
                "the state of this run could be saved, but not be read back: "
                f"{'; '.join(strange[:NUM_NAMED]) or str(error).partition(chr(10))[0]}. A checkpoint holds tensors, "
                "numbers, strings, None, and tuples, lists and dicts of these. In the state_dict() of what setup() and "
                "track() were given, write float(x) for a NumPy number and torch.from_numpy(x) for an array.",
                found=strange,
            ) from error
        self._seen |= found


def _add_types(value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], found: set[type]) -> None:
    """Add the types of all values within `value` to `found`."""
    if isinstance(value, Mapping):
        found.update(map(type, value))
        values = list(value.values())
    else:
        values = list(value)
    kinds = set(map(type, values))
    found |= kinds
    # Most containers hold no other container: a random generator of each rank is 625 numbers.
    if any(issubclass(kind, _CONTAINERS) for kind in kinds):
        for each in values:
            if isinstance(each, _CONTAINERS):
                _add_types(each, found)


def _walk(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Walk all values in `value`, each with its path.

    Such as `objects.scheduler.best`. Keys count as values.
    """
    yield where, value
    if isinstance(value, Mapping):
        for key, each in value.items():
            path = f"{where}.{key}" if where else str(key)
            yield f"the key {path}", key
            yield from _walk(each, path)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _walk(each, f"{where}[{index}]")


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
