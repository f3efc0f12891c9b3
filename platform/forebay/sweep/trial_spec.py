"""Specification shared by all trials of a sweep.

And the jobs made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from forebay.data.cache.block_key import BlockNames
from forebay.errors import BadJob
from forebay.runtime.foreign_code import error_of
from forebay.runtime.pickling import NotPicklable, pickled, unpickled
from forebay.storage.credentials import Access
from forebay.sweep.layout import run_name, runs_path
from forebay.sweep.space import SweepParameters
from forebay.training.job.coercion import coerce
from forebay.training.job.job import Job
from forebay.training.job.recipe import Parameter, Recipe
from forebay.training.runs.control import Callback
from forebay.training.runs.job_facts import SWEEP_FACT

# Another trial forks from one of the newest checkpoints, which must be in storage and stay there for a while.
KEPT_FOR_FORKS = 3
RESULT_FACTS = frozenset(
    (
        *("workers", "rows_per_s", "epoch_s", "startup_s", "resize_s", "blocks", "epochs"),
        *("epoch", "training_iteration", "run", "why", "diverged", "finished", "done"),
    )
)
"""Names in the result of a trial's epoch that no metric can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """Job function and options that all trials share.

    `has_exchange`: trials fork from each other's checkpoints.

    `gpus` is the number for jobs that leave it to the cluster. None: a trial decides by itself.

    `parameters` is read from the signatures in this process: a function pickled by value loses its annotations.
    """

    sweep: str
    storage: str
    access: Access
    recipe: Recipe
    parameters: SweepParameters
    fixed: Mapping[str, Any]
    driver: str
    metric: str
    mode: Literal["min", "max"]
    hang_timeout_s: float
    callbacks: Callable[..., Sequence[Callback]] | None = None
    has_exchange: bool = False
    gpus: float | None = None

    def job(self, config: Mapping[str, Any]) -> Job:
        """Return the job for `config`.

        Raises `BadJob`, also for a name that is not a parameter, and any exception of the function.
        """
        for name in config:
            if not name.startswith("__"):  # Tune's own, such as the `__trial_index__` of its Repeater
                self.parameters.validate_name(name, "config")
        given = self._given(self.parameters.job, config)
        job = self.recipe(**given)
        if not isinstance(job, Job):
            raise BadJob(f"the job function returned {type(job).__name__}, not a Job. End it with `return Job(...)`.")
        defaults = {name: each.default for name, each in self.parameters.job.items() if not each.required}
        return self.on_gpus(replace(job, parameters={**defaults, **given, **job.parameters}))

    def on_gpus(self, job: Job) -> Job:
        """Return `job` with the sweep's GPUs, unless it names some."""
        if self.gpus is None or job.resources.gpus is not None:
            return job
        return replace(job, resources=replace(job.resources, gpus=self.gpus))

    def try_job(self, config: Mapping[str, Any]) -> Job | None:
        """Return the job for `config`, or None if that raises.

        Then the trial itself fails.
        """
        made: list[Job] = []
        error_of(lambda: made.append(self.job(config)))
        return made[0] if made else None

    def make_trial_job(self, config: Mapping[str, Any], trial_id: str, generation: int = 0) -> Job:
        """Return the job of a trial under its own name.

        With its minimum of workers. The sweep adds workers later.
        """
        job = self.job(config)
        job = replace(
            job,
            name=run_name(self.sweep, trial_id, generation),
            storage=runs_path(self.storage, self.sweep),
            hang_timeout_s=min(job.hang_timeout_s, self.hang_timeout_s),
            parameters={**job.parameters, SWEEP_FACT: self.sweep},
        )
        if job.elastic is not None:
            job = replace(job, elastic=replace(job.elastic, start=job.elastic.min_workers))
        if self.has_exchange:
            job = replace(job, storage_every_s=0.0, keep_last=max(job.keep_last, KEPT_FOR_FORKS))
        return job

    def make_callbacks(self, config: Mapping[str, Any]) -> Sequence[Callback]:
        """Return the callbacks of a trial's run.

        Raises `BadJob` for values that do not fit.
        """
        if self.callbacks is None:
            return ()
        return tuple(self.callbacks(**self._given(self.parameters.callbacks, config)))

    def _given(self, known: Mapping[str, Parameter], config: Mapping[str, Any]) -> dict[str, Any]:
        # Some searchers suggest NumPy scalars.
        values = {name: value.item() if isinstance(value, np.generic) else value for name, value in config.items()}
        values = {**self.fixed, **values}
        return {name: coerce(name, values[name], each.annotation) for name, each in known.items() if name in values}


def blocks_of(job: Job) -> str:
    """Return the names of a job's blocks, one per dataset.

    As in `forebay cache ls`. Empty without a cache.
    """
    return "" if job.cache is None else ", ".join(BlockNames(dataset).dataset for dataset in job.data.datasets)


def pack(spec: TrialSpec) -> bytes:
    """Pickle `spec` for another process.

    With the user's own code by value. Raises `BadJob` if that fails.
    """
    try:
        return pickled(spec)
    except NotPicklable as error:
        raise BadJob(
            f"the job function cannot be sent to a trial's process ({error}). Make locks, connections, open files and "
            "the like within it."
        ) from error


def unpack(payload: bytes) -> TrialSpec:
    """Inverse of `pack`."""
    spec = unpickled(payload)
    assert isinstance(spec, TrialSpec)
    return spec
