"""Callbacks for `fb.run`.

One module each: comet, mlflow, progress, scaling, tensorboard, throughput, wandb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.training.callbacks import comet as comet
    from forebay.training.callbacks import mlflow as mlflow
    from forebay.training.callbacks import progress as progress
    from forebay.training.callbacks import scaling as scaling
    from forebay.training.callbacks import tensorboard as tensorboard
    from forebay.training.callbacks import wandb as wandb
    from forebay.training.runs.control import optional_callback as optional_callback

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "comet": "forebay.training.callbacks.comet:",
        "mlflow": "forebay.training.callbacks.mlflow:",
        "optional_callback": "forebay.training.runs.control",
        "progress": "forebay.training.callbacks.progress:",
        "scaling": "forebay.training.callbacks.scaling:",
        "tensorboard": "forebay.training.callbacks.tensorboard:",
        "wandb": "forebay.training.callbacks.wandb:",
    },
)
