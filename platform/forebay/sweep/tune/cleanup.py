"""Placement groups that failed trials leave in the cluster."""

from __future__ import annotations

import logging
from typing import Any

from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Trial

from forebay.ray_cluster.placement import remove_places
from forebay.sweep.layout import trial_id_of

log = logging.getLogger(__name__)


class PlacementCleanup(tune.Callback):  # type: ignore[misc]
    """Tune callback that frees the placement groups of a trial's workers if the trial hangs or its process is lost.

    Repeated at the end of the sweep: the process that places workers may outlive the trial for a moment.
    """

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep
        self._failed: list[Trial] = []

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        """Free the placement groups of a trial that has failed for good."""
        self._remove(trial)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        """Free the placement groups of a trial whose process is lost and will be replaced."""
        self._remove(trial)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002
        """Free what is left after the end of all trials."""
        for trial in self._failed:
            self._free(trial)

    def _remove(self, trial: Trial) -> None:
        self._failed.append(trial)
        self._free(trial)

    def _free(self, trial: Trial) -> None:
        try:
            remove_places(lambda run: trial_id_of(run, self._sweep) == trial.trial_id)
        except (RayError, OSError) as error:
            log.warning(
                "The placement groups of trial %s could not be removed from the cluster: %s", trial.trial_id, error
            )
