"""Resources that a trial's own process requests from the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune import PlacementGroupFactory

from forebay.sweep.trial_spec import TrialSpec, pack, unpack
from forebay.training.job.job import Job

_PACKED: dict[bytes, TrialSpec] = {}
"""Specs packed in this process, by payload."""
NO_CPU = {"CPU": 0, "memory": 1 << 20}
"""Request of a trial's own process. Tune refuses an empty one, and its default is one CPU."""


def pack_here(spec: TrialSpec) -> bytes:
    """`pack(spec)`, remembered: in this process `trial_resources` uses `spec` itself instead of unpickling it."""
    payload = pack(spec)
    _PACKED.clear()
    _PACKED[payload] = spec
    return payload


def trial_resources(
    payload: bytes, driver: str, otherwise: Mapping[str, float], config: Mapping[str, Any]
) -> PlacementGroupFactory:
    """Resources of a trial's actor. Only with the local driver do they include the workers, which are its child
    processes.

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
    """CPUs and GPUs of the workers that `job` starts with."""
    return {"CPU": job.min_workers * job.resources.cpus, "GPU": job.min_workers * job.resources.gpus}
