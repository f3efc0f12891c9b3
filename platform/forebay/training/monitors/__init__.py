"""Monitors of training, and their verdicts (`docs/monitors.md`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.training.monitors.embedding_norms import EmbeddingNorms as EmbeddingNorms
    from forebay.training.monitors.loss_spikes import LossSpikes as LossSpikes
    from forebay.training.monitors.monitor import Action as Action
    from forebay.training.monitors.monitor import Verdict as Verdict
    from forebay.training.monitors.nan_guard import NanGuard as NanGuard
    from forebay.training.monitors.source_losses import losses_by_source as losses_by_source
    from forebay.training.state.setup import TrainSetup as TrainSetup

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "Action": "forebay.training.monitors.monitor",
        "EmbeddingNorms": "forebay.training.monitors.embedding_norms",
        "LossSpikes": "forebay.training.monitors.loss_spikes",
        "NanGuard": "forebay.training.monitors.nan_guard",
        "TrainSetup": "forebay.training.state.setup",
        "Verdict": "forebay.training.monitors.monitor",
        "losses_by_source": "forebay.training.monitors.source_losses",
    },
)
