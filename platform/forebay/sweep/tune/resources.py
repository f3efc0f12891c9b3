"""What a trial's own process asks of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune import PlacementGroupFactory

from forebay.job.job import Job
from forebay.sweep.trial_spec import TrialSpec, pack, unpack

_PACKED: dict[bytes, TrialSpec] = {}
"""What was packed in this process, by what it was packed into."""
NO_CPU = {"CPU": 0, "memory": 1 << 20}
"""What a trial's own process asks for: nothing would be refused, and Tune's default is a CPU."""


def pack_here(spec: TrialSpec) -> bytes:
    """`pack(spec)`, which `trial_resources` reads in this process without unpickling it."""
    payload = pack(spec)
    _PACKED.clear()
    _PACKED[payload] = spec
    return payload


def trial_resources(
    payload: bytes, driver: str, otherwise: Mapping[str, float], config: Mapping[str, Any]
) -> PlacementGroupFactory:
    """What a trial's actor asks for: the workers' share only where they are its own process and its children.

    A job function that raises is the failure of its trial, which has to start for that: with `otherwise`.
    """
    if driver != "local":
        return PlacementGroupFactory([dict(NO_CPU)])
    # What is unpickled in the process that pickled it puts its methods, cut down, into the user's own classes.
    spec = _PACKED.get(payload) or unpack(payload)
    try:
        share = worker_share(spec.job(config))
    except Exception:  # noqa: BLE001 - what a job function raises
        share = otherwise
    return PlacementGroupFactory([{**NO_CPU, **share}])


def worker_share(job: Job) -> Mapping[str, float]:
    """CPUs and GPUs of the workers that `job` begins with."""
    return {"CPU": job.min_workers * job.resources.cpus, "GPU": job.min_workers * job.resources.gpus}
