"""What every trial of a sweep is made from, and how a job comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import cloudpickle
import numpy as np

from forebay.cache.block_key import BlockNames
from forebay.errors import BadJob
from forebay.job.coercion import coerce
from forebay.job.job import Job
from forebay.job.recipe import Parameter, Recipe
from forebay.pickling import own_code_by_value
from forebay.runs.callback import Callback
from forebay.storage.credentials import Access
from forebay.sweep.layout import run_name, runs_path
from forebay.sweep.space import SweepParameters

# A branch is made from a commit of another trial: the newest few have to be in storage, and to stay there a while.
KEPT_FOR_BRANCHES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """A job function with what all trials share. `exchanges`: trials go on from each other's commits.

    `takes` is read from the signatures here: where functions travel by value, what annotations name stays behind.
    """

    sweep: str
    storage: str
    access: Access
    recipe: Recipe
    takes: SweepParameters
    fixed: Mapping[str, Any]
    driver: str
    metric: str
    mode: Literal["min", "max"]
    hang_timeout_s: float
    callbacks: Callable[..., Sequence[Callback]] | None = None
    exchanges: bool = False

    def job(self, config: Mapping[str, Any]) -> Job:
        """The job of a trial as its function makes it. Raises `BadJob`, and whatever the function does."""
        job = self.recipe(**self._given(self.takes.job, config))
        if not isinstance(job, Job):
            raise BadJob(f"the job function returned {type(job).__name__}, not a Job. End it with `return Job(...)`.")
        return job

    def trial_job(self, config: Mapping[str, Any], trial_id: str, generation: int = 0) -> Job:
        """The job of a trial under its own name, with as few workers as it may have: more are given to it later."""
        job = self.job(config)
        job = replace(
            job,
            name=run_name(self.sweep, trial_id, generation),
            storage=runs_path(self.storage, self.sweep),
            hang_timeout_s=min(job.hang_timeout_s, self.hang_timeout_s),
        )
        if job.elastic is not None:
            job = replace(job, elastic=replace(job.elastic, start=job.elastic.min_workers))
        if self.exchanges:
            job = replace(job, storage_every_s=0.0, keep_last=max(job.keep_last, KEPT_FOR_BRANCHES))
        return job

    def make_callbacks(self, config: Mapping[str, Any]) -> Sequence[Callback]:
        """The callbacks of a trial's run. Raises `BadJob` for values that do not fit."""
        if self.callbacks is None:
            return ()
        return tuple(self.callbacks(**self._given(self.takes.callbacks, config)))

    def _given(self, known: Mapping[str, Parameter], config: Mapping[str, Any]) -> dict[str, Any]:
        # Some searchers suggest NumPy's numbers.
        values = {name: value.item() if isinstance(value, np.generic) else value for name, value in config.items()}
        values = {**self.fixed, **values}
        return {name: coerce(name, values[name], each.annotation) for name, each in known.items() if name in values}


def blocks_of(job: Job) -> str:
    """What `forebay cache ls` calls the blocks that `job` trains on; empty where it has no cache."""
    return "" if job.cache is None else BlockNames(job.data.dataset).dataset


def pack(task: TrialSpec) -> bytes:
    """`task` for another process; the user's own code travels as what it holds. Raises `BadJob` where it cannot."""
    with own_code_by_value():
        try:
            return bytes(cloudpickle.dumps(task))
        except Exception as error:  # what a job function holds may raise anything
            raise BadJob(
                f"the job function cannot be sent to a trial's process ({type(error).__name__}: {error}). Make locks, "
                "connections, open files and the like within it."
            ) from error


def unpack(payload: bytes) -> TrialSpec:
    """What `pack` was given."""
    task = cloudpickle.loads(payload)
    assert isinstance(task, TrialSpec)
    return task
