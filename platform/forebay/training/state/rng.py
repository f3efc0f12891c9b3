"""Random generators, seeded, captured and restored together."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

STACKED_FROM = 32
"""Ranks whose states are stacked in a checkpoint. Earlier releases read those of fewer ranks."""


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
    """Replace tensors and long tuples by arrays, for sending.

    They are pickled and unpickled ten times as fast.
    """
    name, words, *rest = state["numpy"]
    version, numbers, gauss = state["python"]
    return {
        **{name: value.numpy() for name, value in state.items() if isinstance(value, torch.Tensor)},
        "numpy": (name, words.numpy().astype(np.uint32), *rest),
        "python": (version, np.array(numbers, np.uint32), gauss),
    }


def whole(state: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `light`."""
    name, words, *rest = state["numpy"]
    version, numbers, gauss = state["python"]
    return {
        **{name: torch.from_numpy(value) for name, value in state.items() if isinstance(value, np.ndarray)},
        "numpy": (name, torch.from_numpy(words.astype(np.int64)), *rest),
        "python": (version, tuple(numbers.tolist()), gauss),
    }


def saved(states: Sequence[Mapping[str, Any]]) -> Any:
    """Plain containers for a checkpoint, of all ranks' states: light ones, or those that `loaded` returned.

    Of many ranks, one tensor for each part of a state: as a tensor and 625 numbers of each rank, those of 4,096 ranks
    took 8.8 s of every checkpoint.
    """
    if isinstance(states, StackedStates):
        return states.stacked
    is_light = all(isinstance(state["numpy"][1], np.ndarray) for state in states)
    if len(states) < STACKED_FROM:
        return [whole(state) for state in states] if is_light else [*states]
    states = states if is_light else [light(state) for state in states]
    names, words, positions, has_gauss, gauss = zip(*(state["numpy"] for state in states), strict=True)
    versions, numbers, python_gauss = zip(*(state["python"] for state in states), strict=True)
    assert len({*names}) == len({*versions}) == 1, "all ranks run the same release of NumPy and Python"
    return {
        **{
            name: _stacked([state[name] for state in states])
            for name, value in states[0].items()
            if isinstance(value, np.ndarray)
        },
        "numpy": (
            names[0],
            _stacked([each.view(np.int32) for each in words]),
            _stacked(positions),
            _stacked(has_gauss),
            _stacked(gauss),
        ),
        "python": (
            versions[0],
            _stacked([each.view(np.int32) for each in numbers]),
            _stacked([math.nan if each is None else each for each in python_gauss]),
        ),
    }


def loaded(states: Any) -> Sequence[Mapping[str, Any]]:
    """Inverse of `saved`: whole states, by rank."""
    return StackedStates(states) if isinstance(states, Mapping) else states


class StackedStates(Sequence[Mapping[str, Any]]):
    """States of many ranks, each of which is built when it is asked for."""

    def __init__(self, stacked: Mapping[str, Any]) -> None:
        self.stacked = stacked

    def __len__(self) -> int:
        return len(self.stacked["python"][1])

    def __getitem__(self, rank: Any) -> Any:
        name, words, position, has_gauss, gauss = self.stacked["numpy"]
        version, numbers, python_gauss = self.stacked["python"]
        drawn = float(python_gauss[rank])
        return whole(
            {
                **{
                    name: value[rank].numpy().copy()
                    for name, value in self.stacked.items()
                    if isinstance(value, torch.Tensor)
                },
                "numpy": (name, _words(words[rank]), int(position[rank]), int(has_gauss[rank]), float(gauss[rank])),
                "python": (version, _words(numbers[rank]), None if math.isnan(drawn) else drawn),
            }
        )


def _stacked(arrays: Sequence[np.ndarray | float]) -> torch.Tensor:
    return torch.from_numpy(np.stack(arrays))


def _words(row: torch.Tensor) -> np.ndarray:
    found: np.ndarray = row.numpy().view(np.uint32)
    return found


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


class RankGenerators:
    """Random generators of all ranks.

    A vote sends the changed ones: most train functions draw from one or none, and the states of a rank have 13 kB.
    """

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}
        self.of_ranks: list[dict[str, Any]] = []
        """States by rank, on rank 0 after `hear`."""

    def news(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what has changed since the last call."""
        before, self._sent = self._sent, {name: _content(value) for name, value in state.items()}
        return {name: value for name, value in state.items() if self._sent[name] != before.get(name)}

    def hear(self, news: Sequence[Mapping[str, Any]]) -> None:
        """Take the news of all ranks, by rank."""
        known = self.of_ranks or [{} for _ in news]
        self.of_ranks = [{**state, **changed} for state, changed in zip(known, news, strict=True)]


def _content(value: Any) -> Any:
    """Part of a light state as values that can be compared."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return tuple(map(_content, value)) if isinstance(value, tuple) else value
