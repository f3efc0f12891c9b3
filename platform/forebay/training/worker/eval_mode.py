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
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True
