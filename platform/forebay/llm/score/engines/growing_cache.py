"""Cache of keys and values that is written in place: the one of transformers is copied for every token.

Imported where a batch begins, because transformers takes seconds to import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

_LEAST_ROOM = 32
"""Tokens for which there is room behind the prompts at first. Then the room doubles."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """Layer of a cache. `keys` and `values` are views of the tokens so far, within tensors that have more room."""

    def __init__(self) -> None:
        super().__init__()
        self._room: tuple[Tensor, Tensor] | None = None
        self._length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens. Returns those of all tokens."""
        keys, values = key_states, value_states
        length = self._length + keys.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        if self._room is None or length > self._room[0].shape[-2]:
            room = max(length + _LEAST_ROOM, 2 * self._length)
            self._room = self._larger(self.keys, keys, room), self._larger(self.values, values, room)
        for into, added in zip(self._room, (keys, values), strict=True):
            into[..., self._length : length, :] = added
        self._length = length
        return self._shown()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`."""
        if self._room is not None:
            self._room = self._room[0][indices], self._room[1][indices]
            self._shown()

    def _larger(self, before: Tensor, like: Tensor, room: int) -> Tensor:
        made = torch.empty((*like.shape[:-2], room, like.shape[-1]), dtype=like.dtype, device=like.device)
        if self._length:
            made[..., : self._length, :] = before[..., : self._length, :]
        return made

    def _shown(self) -> tuple[Tensor, Tensor]:
        assert self._room is not None
        self.keys, self.values = (each[..., : self._length, :] for each in self._room)
        return self.keys, self.values


def growing_cache(model: Any) -> Any | None:
    """Empty cache of a model whose layers all attend to every token. None for another model, which makes its own."""
    cache = DynamicCache(config=model.config)
    if not cache.layers or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return None
    cache.layers = [GrowingLayer() for _ in cache.layers]
    return cache
