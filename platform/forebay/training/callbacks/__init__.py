"""Callbacks for `fb.run`, one module each: comet, mlflow, progress, scaling, tensorboard, throughput, wandb."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.training.callbacks import comet as comet
    from forebay.training.callbacks import mlflow as mlflow
    from forebay.training.callbacks import progress as progress
    from forebay.training.callbacks import scaling as scaling
    from forebay.training.callbacks import tensorboard as tensorboard
    from forebay.training.callbacks import throughput as throughput
    from forebay.training.callbacks import wandb as wandb

__all__ = ["comet", "mlflow", "progress", "scaling", "tensorboard", "throughput", "wandb"]


def __getattr__(name: str) -> ModuleType:
    """Import a module on first use: most runs need one or none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'forebay.training.callbacks' has no attribute {name!r}")
    return importlib.import_module(f"forebay.training.callbacks.{name}")
