"""What workers and drivers say about a run, as data: small, frozen, picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """What the driver does before its workers train, as a phrase for people: `starting Ray on this machine`."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The workers are about to train, for the first time or again after a failure.

    `num_batches` counts the steps of a full epoch.
    """

    name: str
    world_size: int
    epochs: int
    num_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Metrics of one step, as rank 0 saw them.

    Steps are thinned to about ten a second; the last step of an epoch is always reported. `step` counts commits from 1
    over the whole run. `position` is the number of rows of epoch `epoch` that were passed after this step. `rows`
    counts the global rows trained since the run began, over all epochs, `wait_s` the seconds rank 0 has waited for data
    since its process began. A loss that was multiplied by `batch.weight` is rank 0's share of the global batch;
    `EpochEnded` carries the mean over all ranks.
    """

    step: int
    epoch: int
    position: int
    metrics: Mapping[str, float]
    rows: int
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """One full epoch: what came out of it, and where its time went.

    Each metric is the mean over the times it was given in the epoch and over ranks. `rows` is the number of rows that
    were trained on, over all ranks. `seconds` is the wall time of the epoch; `wait_s` (for data), `eval_s` and
    `commit_s` are the parts of it that were not training steps: means over ranks, but `commit_s` is the slowest rank's,
    for which the others wait. `tally` sums `forebay.observe.METRICS` over ranks, the held-out data's blocks included.
    After a resume in mid-epoch the account goes on from the commit, so it covers what shaped the model. A worker that
    resumes tells all earlier epochs again; the later account of an epoch stands, and one that says nothing new stays
    with the driver.
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]
    rows: int
    seconds: float
    wait_s: float
    eval_s: float
    commit_s: float
    tally: Mapping[str, float] = field(default_factory=dict)
    dropped_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Workers were lost or a train function raised. `error` is a one-line summary; `failures` counts from 1."""

    error: str
    failures: int
    will_retry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over. `path` is its folder, `stopped` the reason where it was asked to stop early."""

    name: str
    path: str
    stopped: str | None = None


Event = Preparing | Started | Reported | EpochEnded | Failed | Finished


class Reporter(Protocol):
    """Where a worker sends its events; made by a driver.

    Laws: `report` never blocks a training step and may be called on rank 0 only; `stop_requested` answers from memory
    and is asked on rank 0 once per saved commit.
    """

    def report(self, event: Event) -> None:
        """Take one event."""

    def stop_requested(self) -> str | None:
        """Return why the run should stop at this commit, or None."""
