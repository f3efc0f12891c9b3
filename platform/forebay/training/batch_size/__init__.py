"""Batch size and learning rate during a run.

By schedule or by measurement: see `docs/batch-and-rate.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.training.batch_size.lr_scaling import LinearScaling as LinearScaling
    from forebay.training.batch_size.lr_scaling import SqrtScaling as SqrtScaling
    from forebay.training.batch_size.noise_scale import NoiseScale as NoiseScale
    from forebay.training.batch_size.schedule import BatchSchedule as BatchSchedule

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "BatchSchedule": "forebay.training.batch_size.schedule",
        "LinearScaling": "forebay.training.batch_size.lr_scaling",
        "NoiseScale": "forebay.training.batch_size.noise_scale",
        "SqrtScaling": "forebay.training.batch_size.lr_scaling",
    },
)
