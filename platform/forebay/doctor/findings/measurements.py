"""Measured numbers of an examination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from forebay.doctor.findings.ways import RoundKind, Way

LOCK_SHARE = 0.25
"""Further share of a transform's time that it must be blocked before a lock is named. Two threads that take turns are
blocked for half of their time. At a quarter, two threads do 1.5 times the work of one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Shares of time in which threads were blocked.

    Attributes:
        alone: The transform in one thread. 0 here and below where it was not measured.
        together: The transform in two threads at once, of both.
        beside: The transform beside the train function.
        training: The train function alone.
        training_beside: The train function beside the transform.
    """

    alone: float = 0.0
    together: float = 0.0
    beside: float = 0.0
    training: float = 0.0
    training_beside: float = 0.0

    @property
    def with_itself(self) -> bool:
        """Whether two transforms at once take turns."""
        return self.together - self.alone > LOCK_SHARE

    @property
    def with_training(self) -> bool:
        """Return whether a transform and the train function take turns.

        Whichever of them waits longer.
        """
        return (self.beside - self.alone + self.training_beside - self.training) / 2 > LOCK_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of one stage.

    Attributes:
        step_s: Bottleneck seconds of a step of the train function, with the wait for its batch.
        cpu_s: CPU seconds of this process per step.
        produce_s: Seconds in which the data workers make the rows of one step. 0 if the round makes no blocks.
        read_s: Seconds in which the reads fetch the pages of these rows, all at work.
        make_s: Seconds in which the cores decode and transform these rows, all at work.
        num_reads: Mean number of row groups that were read at once.
        gather_s: Seconds of the gathering thread per step. 0 without a gather.
        num_steps: Steps of the round.
    """

    number: int
    stage: RoundKind
    step_s: float
    cpu_s: float
    produce_s: float = 0.0
    read_s: float = 0.0
    make_s: float = 0.0
    num_reads: float = 0.0
    gather_s: float = 0.0
    num_steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts of the job that name the bottleneck.

    Attributes:
        rows: Rows of a step of one rank. `small_rows` are the rows of a small batch.
        batch_bytes: Bytes of such a batch.
        block_bytes: Estimated bytes of all blocks of the data, in a cache.
        quota_bytes: Quota of the cache. None without a cache.
        epochs: Epochs of the job.
        data_cores: Cores that decode and transform.
        fixed_reads: Number of row groups that are read at once. None where the job chooses it ("auto").
        cores: Cores that this process may use.
        is_local: Whether the source is a local file system.
        device: Device of the model.
        has_function: Whether a transform is a function of the user. Else it has feature groups only.
    """

    rows: int
    small_rows: int
    batch_bytes: int
    block_bytes: float
    quota_bytes: int | None
    epochs: int
    workers: int
    data_cores: int
    fixed_reads: int | None
    cores: float
    is_local: bool
    device: str
    has_function: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """All rounds, and other measurements.

    `making` has the share of each step of making blocks, of pages in the page cache. `gpu_idle` is the share of time
    in which the GPU did nothing, by way. `cut_off` says where an examination was when its time ended, if it was not
    complete: some of its rounds are estimates then.
    """

    facts: JobFacts
    rounds: tuple[Round, ...]
    contention: Contention | None
    making: Mapping[str, float]
    gpu_idle: Mapping[Way, float]
    cut_off: str | None = None

    @property
    def training_cores(self) -> float:
        """Cores that the train function of one worker keeps busy."""
        return median(each.cpu_s / each.step_s for each in self.of(RoundKind(way=Way.COMPUTE)).values())

    @property
    def usable_data_workers(self) -> int:
        """Cores that training leaves free here, for each worker."""
        free = self.facts.cores / self.facts.workers - self.training_cores
        return max(1, int(free + 0.5))

    def of(self, stage: RoundKind) -> dict[int, Round]:
        """Rounds of a stage, by number."""
        return {each.number: each for each in self.rounds if each.stage == stage}

    def step_s(self, stage: RoundKind) -> dict[int, float]:
        """Return the seconds of a step in each round.

        As in a long epoch of this kind.

        In a round that makes blocks, they are made all the time, and the batches come from held blocks. In an epoch a
        step waits for its rows, or blocks are made only for the share of the time that its rows need: the smaller that
        share, the less training is slowed down by it.
        """
        found = {}
        for number, each in self.of(stage).items():
            found[number] = each.step_s
            if each.produce_s:
                alone = self.of(RoundKind(way=Way.GATHER))[number].step_s
                share = min(1.0, each.produce_s / each.step_s)
                found[number] = max(each.produce_s, alone + max(each.step_s - alone, 0.0) * share)
        return found

    def median_of(self, stage: RoundKind, name: str) -> float:
        """Median of a number over the rounds."""
        values: list[float] = [getattr(each, name) for each in self.of(stage).values()]
        return median(values)


def spread_of(values: Sequence[float]) -> float:
    """Return the median distance from the median.

    Twice this is about twice the standard error of the median of five.
    """
    middle = median(values)
    return median(abs(value - middle) for value in values)
