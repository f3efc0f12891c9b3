"""Eval mode of a model, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch `model` to eval mode within the block.

    Restores the mode of each module: some layers, or all of them, may train in eval mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:  # first those that contain others, whose mode they set
            if module.training != mode:
                module.train(mode)  # some merge adapters in eval mode, and undo it here
