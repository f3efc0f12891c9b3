"""Random generators, seeded, captured and restored together."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def seed_everything(*key: int) -> None:
    """Seed torch, NumPy's global generator and `random`.

    The key is hashed, so neighbouring keys, as (seed, step, rank) of two ranks, give unrelated streams.
    """
    # Not SeedSequence: it takes (7,) and (7, 0) for the same key.
    words = hashlib.sha256(repr(key).encode()).digest()
    torch.manual_seed(int.from_bytes(words[:8], "little"))
    np.random.seed(int.from_bytes(words[8:12], "little"))  # noqa: NPY002 - what user code may draw from
    random.seed(words[12:])


def capture(device: torch.device) -> dict[str, Any]:
    """Return the state of this process's generators.

    `torch.load(weights_only=True)` accepts it.
    """
    legacy: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    name, words, position, has_gauss, gauss = legacy
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (name, torch.from_numpy(words.astype(np.int64)), position, has_gauss, gauss),
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def light(state: Mapping[str, Any]) -> dict[str, Any]:
    """Replace tensors by arrays, for sending.

    They are pickled and unpickled ten times as fast.
    """
    return {name: _each(value, torch.Tensor, torch.Tensor.numpy) for name, value in state.items()}


def whole(state: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `light`."""
    return {name: _each(value, np.ndarray, torch.from_numpy) for name, value in state.items()}


def _each(value: Any, kind: type, turn: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return turn(value)
    # The other tuple has 625 numbers and nothing to convert.
    if isinstance(value, tuple) and isinstance(value[1], kind):
        return tuple(_each(part, kind, turn) for part in value)
    return value


def restore(state: Mapping[str, Any], device: torch.device) -> None:
    """Set all generators to `state`.

    A CUDA state is ignored on another kind of device.
    """
    name, words, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, words.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
