"""Resources of a trial's process, and their release."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ray import tune
from ray.exceptions import RayError
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from forebay.ray_cluster.nodes import remove_placements
from forebay.sweep.layout import trial_id_of
from forebay.sweep.trial_spec import TrialSpec, pack, unpack
from forebay.training.job.job import Job

_PACKED: dict[bytes, TrialSpec] = {}
"""Specs packed in this process, by payload."""
NO_CPU = {"CPU": 0, "memory": 1 << 20}
"""Request of a trial's own process. Tune refuses an empty one, and its default is one CPU."""


def pack_here(spec: TrialSpec) -> bytes:
    """Pickle `spec`, and remember it.

    In this process `trial_resources` uses `spec` itself instead of unpickling it.
    """
    payload = pack(spec)
    _PACKED.clear()
    _PACKED[payload] = spec
    return payload


def trial_resources(
    payload: bytes, driver: str, otherwise: Mapping[str, float], config: Mapping[str, Any]
) -> PlacementGroupFactory:
    """Return the resources of a trial's actor.

    Only with the local driver do they include the workers, which are its child processes.

    If the job function raises, the result is `otherwise`: the trial must start in order to fail.
    """
    if driver != "local":
        return PlacementGroupFactory([dict(NO_CPU)])
    # Unpickling in the process that pickled would replace methods of the user's own classes by reduced ones.
    spec = _PACKED.get(payload) or unpack(payload)
    job = spec.try_job(config)
    share = otherwise if job is None else worker_share(job)
    return PlacementGroupFactory([{**NO_CPU, **share}])


def worker_share(job: Job) -> Mapping[str, float]:
    """Return the CPUs and GPUs that `job` starts with."""
    return {kind: job.min_workers * amount for kind, amount in job.resources.bundle.items()}


log = logging.getLogger(__name__)


class PlacementCleanup(tune.Callback):  # type: ignore[misc]
    """Tune callback that frees placement groups of lost trials.

    A trial is lost if it hangs, or its process is lost.

    Repeated at the end of the sweep: the process that places workers may outlive the trial for a moment.
    """

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep
        self._failed: list[Trial] = []

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        """Free the placement groups of a trial that failed for good."""
        self._remove(trial)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        """Free the placement groups of a trial to be restarted.

        Its process is lost.
        """
        self._remove(trial)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002
        """Free what is left after all trials."""
        for trial in self._failed:
            self._free(trial)

    def _remove(self, trial: Trial) -> None:
        self._failed.append(trial)
        self._free(trial)

    def _free(self, trial: Trial) -> None:
        try:
            remove_placements(lambda run: trial_id_of(run, self._sweep) == trial.trial_id)
        except (RayError, OSError) as error:
            log.warning(
                "The placement groups of trial %s could not be removed from the cluster: %s", trial.trial_id, error
            )
