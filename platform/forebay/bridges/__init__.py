"""The loader in training loops of other libraries (`docs/own-loop.md`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.bridges import hf as hf
    from forebay.bridges import lightning as lightning
    from forebay.bridges import petastorm as petastorm
    from forebay.bridges import ray_train as ray_train
    from forebay.bridges import torch as torch
    from forebay.bridges.jagged_tensors import jagged as jagged
    from forebay.bridges.jagged_tensors import keyed_jagged as keyed_jagged

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "hf": "forebay.bridges.hf:",
        "jagged": "forebay.bridges.jagged_tensors",
        "keyed_jagged": "forebay.bridges.jagged_tensors",
        "lightning": "forebay.bridges.lightning:",
        "petastorm": "forebay.bridges.petastorm:",
        "ray_train": "forebay.bridges.ray_train:",
        "torch": "forebay.bridges.torch:",
    },
)
