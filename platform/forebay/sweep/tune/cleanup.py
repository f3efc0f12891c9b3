"""What a trial that came to a bad end leaves in the cluster, for others to have."""

from __future__ import annotations

import logging
from typing import Any

from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Trial

from forebay.ray_cluster.placement import remove_places
from forebay.sweep.layout import trial_of

log = logging.getLogger(__name__)


class PlacementCleanup(tune.Callback):  # type: ignore[misc]
    """Frees the places of a trial's workers where the trial hangs, or its process is lost: nobody else would.

    At the end of the sweep once more: who hires workers for the trial may have outlived it for a moment.
    """

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep
        self._failed: list[Trial] = []

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        """The trial has failed for good."""
        self._remove(trial)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        """The trial's process is lost, and will be replaced."""
        self._remove(trial)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002
        """All trials have ended."""
        for trial in self._failed:
            self._free(trial)

    def _remove(self, trial: Trial) -> None:
        self._failed.append(trial)
        self._free(trial)

    def _free(self, trial: Trial) -> None:
        try:
            remove_places(lambda run: trial_of(run, self._sweep) == trial.trial_id)
        except (RayError, OSError) as error:
            log.warning("The places of trial %s could not be removed from the cluster: %s", trial.trial_id, error)
