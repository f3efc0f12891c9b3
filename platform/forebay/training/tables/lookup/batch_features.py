"""Names of the arrays that a model is called with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class BatchFeatures:
    """Arguments of the current call of a model.

    They name the ids that its tables look up.

    They are not held between calls: the memory of a batch may be used again.
    """

    def __init__(self, model: nn.Module) -> None:
        self._signature = inspect.signature(model.forward)
        self._call: tuple[tuple[Any, ...], Mapping[str, Any]] = (), {}
        self.is_first_call = True
        """Whether no call has ended."""
        model.register_forward_pre_hook(self._enter, with_kwargs=True)
        model.register_forward_hook(self._leave, always_call=True)

    def name_of(self, ids: Tensor) -> str:
        """Return the arrays or arguments that have `ids`.

        Empty if none has them.

        Values are compared, because ids are often a copy in another type.
        """
        args, kwargs = self._call
        wanted, found = ids.reshape(-1).long(), []
        for name, value in self._signature.bind_partial(*args, **kwargs).arguments.items():
            for words, array in _arrays(name, value):
                if (position := _place_in(array, wanted)) is not None:
                    found.append(words + position)
        return " or ".join(found)

    def _enter(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = args, kwargs

    def _leave(self, _model: nn.Module, _args: Any, _output: Any) -> None:
        self._call, self.is_first_call = ((), {}), False


def _arrays(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an argument, with names.

    It may be a batch.
    """
    batch = {f"feature {key!r}": each for key, each in value.items()} if isinstance(value, Mapping) else {}
    for words, each in (batch or {f"argument {name!r}": value}).items():
        if isinstance(each, Tensor) and each.dim():
            yield words, each


def _place_in(array: Tensor, wanted: Tensor) -> str | None:
    """Return the column of `array` with values `wanted` [n].

    An empty text if the whole array has them, None if nothing does.
    """
    values = array.to(wanted.device).long()
    if values.numel() == len(wanted):
        return "" if torch.equal(values.reshape(-1), wanted) else None
    if values.dim() != 2 or len(values) != len(wanted):
        return None
    columns = (values == wanted.unsqueeze(1)).all(0).nonzero()[:, 0].tolist()
    return f", column {columns[0]}" if columns else None
