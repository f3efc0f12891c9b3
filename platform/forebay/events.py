"""Events of a run, and requests to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from forebay.errors import Fenced

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """Step of the driver before its workers train.

    `what` is a phrase for people: `starting Ray on this machine`.
    """

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The workers are about to train.

    For the first time, after a failure, or in a world of another size. `world_size` is the number of workers until the
    next `Started`. `num_batches` is the number of steps of a full epoch at the global batch that the job begins with.
    `max_steps` is the job's. `on_demand` is the number of machines on demand of a run that a fleet placed on spot ones.
    """

    name: str
    world_size: int
    epochs: int
    num_batches: int
    max_steps: int | None = None
    on_demand: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesCut:
    """The rows of each step from `step` on.

    Valid until the next `BatchesCut`. Step `step` begins at `position` of `epoch`. Each step takes the next `batches`
    global batches of `global_batch` rows, or fewer at the end of an epoch, and `world_size` workers share each of them.
    Reported at the first step of every world, and when the global batch or the batches of a step change. So the rows of
    any past step are known.
    """

    step: int
    epoch: int
    position: int
    global_batch: int
    batches: int
    world_size: int


MAX_STEPS = 4096
"""First steps of a run, which are all reported, and most of which its result keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Metrics of one step, as rank 0 saw them.

    Reported are the first `MAX_STEPS` of a run, the last one of an epoch, and of others about ten a second. They arrive
    about ten times a second and before each checkpoint, several together. `step` counts commits from 1 over the whole
    run. `position` is the number of rows of epoch `epoch` passed after this step. `rows` is the number of global rows
    trained since the run began, over all epochs. `wait_s` is the number of seconds that rank 0 has waited for data
    since its process began. `global_batch` is the number of rows per step. A loss that was multiplied by `batch.weight`
    is rank 0's share of the global batch. `EpochEnded` carries the mean over all ranks.
    """

    step: int
    epoch: int
    position: int
    metrics: Mapping[str, float]
    rows: int
    wait_s: float = 0.0
    global_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Text of a model for a prompt.

    `wanted` is the text of the data, if there is one.
    """

    prompt: str
    text: str
    wanted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Evaluation after `step`, by the function of `worker.evaluate_with`.

    Step 0 is the one before the first step. Each `metrics` value is over all ranks, and is part of the `Reported` of
    the same step too. `epoch`, `position` and `rows` are as in `Reported`. With the job's `keep_best`, `is_best` is
    True if no earlier evaluation was as good. `ends_epoch` is True at the end of an epoch, whose `EpochEnded` has the
    same metrics.

    A checkpoint of the same step follows. A worker that resumes reports those again that its driver does not have.
    """

    step: int
    epoch: int
    position: int
    metrics: Mapping[str, float]
    rows: int
    is_best: bool = False
    ends_epoch: bool = False
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """Result and times of one full epoch.

    Each metric is the mean over the times it was given in the epoch and over ranks, or of the last `Evaluated` of the
    epoch. `rows` is the number of rows
    trained, over all ranks. It is smaller than the epoch if a batch was skipped. `seconds` is the wall time of the
    epoch. `wait_s` (for data), `eval_s` and `checkpoint_s` are the parts of it that were not training steps. They are
    means over ranks, except `checkpoint_s`: the time of the slowest rank, for which the others wait. The checkpoint
    that ends an epoch counts for the next epoch, and the last checkpoint for the last epoch. `counters` sums
    `forebay.runtime.metrics.METRICS` over ranks and includes the blocks of the held-out data.

    After a resume in the middle of an epoch, the sums continue from the checkpoint. So they cover all steps that shaped
    the model. A worker that resumes reports those epochs that its driver does not have. The later report of an
    epoch replaces the earlier one.
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]
    rows: int
    seconds: float
    wait_s: float
    eval_s: float
    checkpoint_s: float
    counters: Mapping[str, float] = field(default_factory=dict)
    dropped_rows: int = 0

    @property
    def rows_per_s(self) -> float:
        """Global rows per second of the whole epoch.

        Evaluation and checkpoints are included.
        """
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the epoch spent waiting for data.

        0 to 1, as a mean over ranks.
        """
        return self.wait_s / self.seconds if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Seconds of the epoch left for training steps."""
        return max(self.seconds - self.wait_s - self.eval_s - self.checkpoint_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Workers were lost, or a train function raised.

    `error` is a one-line summary, `INTERRUPTED` after Ctrl-C. `failures` counts from 1.
    """

    error: str
    failures: int
    will_retry: bool

    @property
    def is_fenced(self) -> bool:
        """Whether a later attempt has taken over: the run goes on elsewhere, and its folder is not this one's."""
        return self.error.startswith(f"{Fenced.__name__}: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over.

    `path` is its folder, `stopped` the reason if it was asked to stop early.
    """

    name: str
    path: str
    stopped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """The world changed from `old` to `new` workers on request.

    `step` is the number of commits before the change. The `Started` of the new world follows at once. A world whose
    size changed because of a failure is reported by `Failed` and `Started` only.
    """

    old: int
    new: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """`node` will be taken away.

    `others` are nodes with the same notice. `workers` workers of the run are on them. They leave before `deadline_s`,
    in Unix seconds. It is None if the notice has no deadline.
    """

    node: str
    workers: int
    deadline_s: float | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A monitor rejected step `from_step`.

    All ranks went back to the checkpoint of `to_step`. `skipped_rows` rows are not trained on in this epoch. It is 0 if
    the same batches are trained again. `skipped` are their positions: epoch, first position, and position after the
    last.
    """

    reason: str
    from_step: int
    to_step: int
    skipped_rows: int = 0
    skipped: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A monitor found something at `step`.

    A person should look at it. Training continues. `rank` takes no step, and does not wait for others. It is None for
    everything else.
    """

    reason: str
    step: int
    rank: int | None = None


class MachineUse(NamedTuple):
    """Means over the time since the reading before. Memory is as it is now.

    Shares are 0 to 1, and NaN where the machine does not tell. GPUs are a mean over all of the machine.
    """

    cpu: float
    memory: float
    gpu: float
    gpu_memory: float
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float
    received_bytes_per_s: float
    sent_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsed:
    """Use of a node of the run since its last report.

    The record of the run has it. Callbacks do not get it.
    """

    node: str
    use: MachineUse


Event = (
    Preparing
    | Started
    | BatchesCut
    | Reported
    | Evaluated
    | EpochEnded
    | Resized
    | Preempted
    | RolledBack
    | Warned
    | NodeUsed
    | Failed
    | Finished
)


class Reporter(Protocol):
    """Link from rank 0 to its driver.

    Laws:
    - `report` never blocks a training step.
    - `request` answers from memory or within one quick round trip. It is called once per checkpoint.
    - `synced_request` is called at the end of an epoch, and takes as long as the callbacks do.
    - `knows` answers for the driver, which has all reports before one that it has. It is called where a worker resumes.
    """

    def report(self, *events: Event) -> None:
        """Send events, in order."""

    def request(self) -> Request:
        """Return what is requested of this world now."""
        ...

    def synced_request(self) -> Request:
        """Return the request once callbacks have received all reported events."""
        ...

    def knows(self, report: EpochEnded | Evaluated) -> bool:
        """Return whether the driver has this report."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request to a run.

    It may end the run, resize it, or change its global batch. `stop` is the reason to end the run. `target` is the
    number of workers to train on. `global_batch` is the number of rows per step from the next batch on. None leaves
    each of them as it is.

    Rank 0 reads the request once per checkpoint, and all ranks obey it at that checkpoint. With a `target`, every rank
    leaves its world there, and a driver can start the next one at exactly this checkpoint. The target may be the
    present world size, because some workers move to other nodes.
    """

    stop: str | None = None
    target: int | None = None
    global_batch: int | None = None

    def for_world(self, size: int) -> Request:
        """Return the request to a world of `size` workers.

        Its `target` is None if the world has that size already.
        """
        return replace(self, target=None) if self.target == size else self
