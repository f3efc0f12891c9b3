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
    """The workers are about to train: for the first time, again after a failure, or as a world of another size.

    `world_size` is the truth about the size of the world until the next `Started`. `num_batches` counts the steps of a
    full epoch at the global batch that the job begins with.
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
    since its process began, `global_batch` the rows per step that are in use. A loss that was multiplied by
    `batch.weight` is rank 0's share of the global batch; `EpochEnded` carries the mean over all ranks.
    """

    step: int
    epoch: int
    position: int
    metrics: Mapping[str, float]
    rows: int
    wait_s: float = 0.0
    global_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """One full epoch: what came out of it, and where its time went.

    Each metric is the mean over the times it was given in the epoch and over ranks. `rows` is the number of rows that
    were trained on, over all ranks; fewer than there are where a batch was skipped. `seconds` is the wall time of the
    epoch; `wait_s` (for data), `eval_s` and `checkpoint_s` are the parts of it that were not training steps: means over
    ranks, but `checkpoint_s` is the slowest rank's, for which the others wait. The checkpoint that ends an epoch counts
    for the next one, and that of the last epoch on the last. `tally` sums `forebay.metrics.METRICS` over ranks, the
    held-out data's blocks included. After a resume in mid-epoch the account goes on from the commit, so it covers what
    shaped the model. A worker that resumes tells all earlier epochs again; the later account of an epoch stands, and
    one that says nothing new stays with the driver.
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]
    rows: int
    seconds: float
    wait_s: float
    eval_s: float
    checkpoint_s: float
    tally: Mapping[str, float] = field(default_factory=dict)
    dropped_rows: int = 0

    @property
    def rows_per_s(self) -> float:
        """Global rows per second of the whole epoch, evaluation and checkpoints included."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the epoch that was spent waiting for data, 0 to 1, as a mean over ranks."""
        return self.wait_s / self.seconds if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Seconds of the epoch left for training steps."""
        return max(self.seconds - self.wait_s - self.eval_s - self.checkpoint_s, 0.0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """The world changed from `old` to `new` workers, as was asked for; `step` counts the commits before it.

    The `Started` of the new world follows at once. A world that came back smaller or larger after a failure is told by
    `Failed` and `Started` alone.
    """

    old: int
    new: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """`node` is about to be taken away, with `workers` of the run on it; they leave it before `deadline_s` Unix time.

    `deadline_s` is None where nobody said when.
    """

    node: str
    workers: int
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A monitor judged step `from_step` unfit to be kept: all went back to the commit of `to_step`.

    `skipped_rows` are not trained on in this epoch; 0 where the same batches are trained again.
    """

    reason: str
    from_step: int
    to_step: int
    skipped_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A monitor found something at `step` that a person should look at; training goes on."""

    reason: str
    step: int


Event = Preparing | Started | Reported | EpochEnded | Resized | Preempted | RolledBack | Warned | Failed | Finished


class Reporter(Protocol):
    """Where a worker sends its events, and hears what is asked of it; made by a driver, used on rank 0 only.

    Laws: `report` never blocks a training step; `orders` answers from memory, or within one quick round trip, and is
    asked once per saved commit; `settled_orders` is asked at the end of an epoch, and takes as long as callbacks do.
    """

    def report(self, event: Event) -> None:
        """Take one event."""

    def orders(self) -> Commands:
        """What is asked of the workers now."""
        ...

    def settled_orders(self) -> Commands:
        """What is asked of them once every callback has heard all that was reported so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Read on rank 0 once per saved commit, shared with all ranks, and obeyed by all of them at that commit.

    `stop` says why the run shall end here. `workers` is the world size to train on with: one that differs from the
    present makes every rank part, so that a driver can start the next world at exactly this commit; with `moves` they
    part for one of the same size, too: some of it is to go on elsewhere. `global_batch` are the rows per step from the
    next batch on; None leaves it to the job.
    """

    stop: str | None = None
    workers: int | None = None
    global_batch: int | None = None
    moves: bool = False

    def parting(self, world_size: int) -> int | None:
        """The size of the world that one of `world_size` shall part for; None to train on."""
        return self.workers if self.moves or self.workers != world_size else None
