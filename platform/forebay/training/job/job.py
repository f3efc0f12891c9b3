"""Job: train function, data, workers and storage."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, get_args

from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.data import Data
from forebay.errors import InvalidOption, validate_type
from forebay.storage.atomic import NO_ROOM, write_failed
from forebay.storage.credentials import redact, redacted
from forebay.storage.filesystem import resolve
from forebay.training.batch_size.policy import BatchPolicy, RateScaling
from forebay.training.collectives.collective import Reduction
from forebay.training.job.elastic import Elastic
from forebay.training.job.resources import Resources
from forebay.training.job.start_policy import StartPolicy
from forebay.training.monitors.loss_guard import guarded
from forebay.training.monitors.monitor import Monitor
from forebay.training.state.evaluations import KeepBest
from forebay.training.strategies.choice import Offload, StrategyName, require_package
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

NAME_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
COUNTS = {"epochs": 1, "workers": 1, "seed": 0, "checkpoint_every": 1, "max_failures": 0, "keep_last": 1}
"""Option -> its smallest whole number."""
KINDS: Mapping[str, tuple[type | UnionType, str]] = {
    "name": (str | None, "a text, or None for a new name"),
    "data": (Data, "fb.Data(plan=..., transform=..., global_batch=...)"),
    "held_out": (Data | None, "fb.Data(...), or None for none"),
    "resources": (Resources, "fb.Resources(cpus=..., gpus=...)"),
    "elastic": (Elastic | None, "fb.Elastic(min_workers=..., max_workers=...), or None for a fixed number"),
    "monitors": (Sequence, "a tuple of monitors"),
    "keep_best": (KeepBest | None, 'fb.KeepBest("validation_loss", patience=...), or None'),
    "nan_guard": (bool, "True, or False to train on whatever the loss is"),
}
"""Option -> its type, and what to give."""

PROTOCOLS: Mapping[str, tuple[str, str]] = {
    "monitors": ("attach", "monitors, such as fb.monitors.NanGuard()"),
    "batch": ("validate", "fb.batch_size.BatchSchedule({epoch: rows}), fb.batch_size.NoiseScale(...), or None"),
    "rate": ("factor", "fb.batch_size.LinearScaling(...), fb.batch_size.SqrtScaling(...), or None"),
}
"""Option -> a method that its values have, and what to give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job: `train(worker)` on each worker.

    It trains for `epochs` epochs over `data`, on `workers` workers.

    Attributes:
        train: Function that runs in every worker. It is called again when the number of workers changes.
        data: Rows to train on, and the first global batch.
        held_out: Rows that `worker.held_out()` reads, as they are: without an augment.
        epochs: Number of epochs, at least 1.
        workers: Fixed number of workers.
        elastic: Bounds of the target, instead of `workers`. Callbacks, `forebay scale` and a shrinking cluster set it.
        resources: Share of a node that each worker needs. By default a CPU, and a GPU where there are any.
        cache: Cache of each node. None makes every epoch read the source.
        name: Folder of the run under `storage`. The same name, run again, resumes.
        storage: Path, or any URI that `forebay.storage` supports.
        seed: Seed of the random numbers of each rank, at least 0.
        checkpoint_every: Steps between checkpoints. The world and the global batch change only at a checkpoint.
        eval_every: Steps between evaluations (`worker.evaluate_with`, `fb.fit(evaluate=)`). There is one before the
            first step too. None: only at the end of each epoch. A checkpoint follows each evaluation.
        max_steps: Number of steps after which the run ends, if its epochs have more.
        keep_best: Metric of the evaluations whose best checkpoint is kept, and a number of evaluations that are not
            better after which the run ends.
        max_failures: Number of times that lost workers are replaced.
        monitors: Monitors of the model, the gradients or the loss. A step they reject never reaches a checkpoint.
        nan_guard: End the run with `Diverged` if a committed loss or a parameter is not finite, or a loss stays a
            million times above the first ones. A `NanGuard` among the monitors replaces the first part.
        batch: Policy that changes the global batch during training.
        rate: Rule by which the learning rate follows the global batch.
        reduction: Way to combine the gradients of all workers: their mean, their Adasum, or `"exact"`. The exact mean
            is bit-equal for every number of workers, and needs `worker.backward`.
        strategy: Way in which workers train one model: "ddp" holds all of it on every worker, "fsdp2", "zero1", "zero2"
            and "zero3" split it.
        offload: "optimizer" keeps the optimizer's states in main memory, with "zero1" to "zero3".
        storage_every_s: Longest time between uploads of a checkpoint to `storage`, in seconds. Between them a
            checkpoint survives the loss of a worker, and of a node if there is a second one.
        keep_last: Number of newest checkpoints that stay in `storage`.
        keep_every: Keep also every checkpoint whose step is a multiple of this.
        hang_timeout_s: Seconds that workers wait for one of them before the run ends with `Hung`.
        room_timeout_s: Seconds that a start waits, under Ray, for a cluster that is too small for its smallest world.
        start: What a start does if the run is under way: it is refused, or follows the other attempt.
        identity: Facts that a resumed run must share, by name, such as its base model. A run of the same name with
            another value is refused, and the error gives both values.
        parameters: Parameters of the job function, for trackers. `forebay run` and sweeps set them.

    Raises `InvalidOption`, `BatchTooSmall` or `TooManyRanks` for values that can never work. `check()` checks what
    depends on the machine and on storage.
    """

    train: Callable[[Worker], None]
    data: Data
    held_out: Data | None = None
    epochs: int = 1
    workers: int = 1
    elastic: Elastic | None = None
    resources: Resources = field(default_factory=Resources)
    cache: CacheSpec | None = field(default_factory=CacheSpec)
    name: str | None = None
    storage: str = "runs"
    seed: int = 0
    checkpoint_every: int = 100
    eval_every: int | None = None
    max_steps: int | None = None
    keep_best: KeepBest | None = None
    max_failures: int = 3
    monitors: tuple[Monitor, ...] = ()
    nan_guard: bool = True
    batch: BatchPolicy | None = None
    rate: RateScaling | None = None
    reduction: Reduction = "mean"
    strategy: StrategyName = "ddp"
    offload: Offload = "none"
    storage_every_s: float = 60.0
    keep_last: int = 2
    keep_every: int | None = None
    hang_timeout_s: float = 120.0
    room_timeout_s: float = 900.0
    start: StartPolicy = field(default_factory=StartPolicy)
    identity: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.train):
            raise InvalidOption(f"train={self.train!r} is not a function. Give `def train(worker: Worker) -> None`.")
        for option, (kind, give) in KINDS.items():
            validate_type(option, getattr(self, option), kind, give)
        for option, least in COUNTS.items():
            _check_count(option, getattr(self, option), least)
        for option in ("keep_every", "eval_every", "max_steps"):
            if getattr(self, option) is not None:
                _check_count(option, getattr(self, option), 1)
        self._check_steering()
        if self.name is not None and not NAME_FORM.fullmatch(self.name):
            raise InvalidOption(
                f"name={self.name!r} cannot name a folder. Use up to 255 letters, digits, '.', '_' and '-', "
                "beginning with a letter or a digit.",
                name=self.name,
            )
        for data in self._datas:
            data.validate_world_size(self.max_workers)
        if self.held_out is not None and self.held_out.augment is not None:
            raise InvalidOption(
                f"held_out has augment={self.held_out.augment!r:.200}: metrics of rows that change at random cannot be "
                "compared. Leave augment= out of the held-out data."
            )

    def _check_steering(self) -> None:
        if self.elastic is not None and self.workers != 1:
            raise InvalidOption(
                f"workers={self.workers} and {self.elastic} were both given. Give elastic= alone; its start= says how "
                "many workers there are at first.",
                workers=self.workers,
            )
        gpus = self.resources.gpus
        if gpus and gpus < 1 and self.max_workers > 1:
            raise InvalidOption(
                f"gpus={gpus:g} can put two of up to {self.max_workers} workers on one GPU, and NCCL refuses a GPU "
                "that another rank has. Give gpus=1 or more, gpus=0 to train on the CPU, or workers=1.",
                gpus=gpus,
            )
        if self.reduction not in get_args(Reduction):
            known = ", ".join(map(repr, get_args(Reduction)))
            raise InvalidOption(f"reduction={self.reduction!r} is unknown. Choose one of {known}.")
        for option, (method, give) in PROTOCOLS.items():
            value = getattr(self, option)
            values = value if option == "monitors" else () if value is None else (value,)
            for each in values:
                if isinstance(each, type) or not hasattr(each, method):
                    raise InvalidOption(f"{option}={value!r:.200}: give {give}.", option=option)
        if self.batch is not None:
            self.batch.validate(self.reduction, self.data)
        # A list is accepted too, but a frozen job holds nothing that changes.
        object.__setattr__(self, "monitors", tuple(self.monitors))
        self.train_spec.options_of(self.strategy)
        for option, least in (("storage_every_s", 0.0), ("hang_timeout_s", 0.1), ("room_timeout_s", 0.0)):
            seconds = getattr(self, option)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= least:
                raise InvalidOption(f"{option}={seconds!r} cannot work. Give {least:g} seconds or more.", option=option)

    @property
    def start_workers(self) -> int:
        """Number of workers requested at first."""
        return self.workers if self.elastic is None else self.elastic.target

    @property
    def min_workers(self) -> int:
        """Smallest world size of the run."""
        return self.workers if self.elastic is None else self.elastic.min_workers

    @property
    def max_workers(self) -> int:
        """Largest world size of the run."""
        return self.workers if self.elastic is None else self.elastic.max_workers

    @property
    def max_cpus(self) -> int:
        """Logical CPUs that `max_workers` workers need.

        With fewer, a run would wait forever.
        """
        return math.ceil(self.max_workers * self.resources.cpus)

    @property
    def _datas(self) -> tuple[Data, ...]:
        return (self.data,) if self.held_out is None else (self.data, self.held_out)

    @property
    def train_spec(self) -> TrainSpec:
        """Part of the job that each worker needs."""
        return TrainSpec(
            data=self.data,
            held_out=self.held_out,
            epochs=self.epochs,
            seed=self.seed,
            checkpoint_every=self.checkpoint_every,
            eval_every=self.eval_every,
            max_steps=self.max_steps,
            keep_best=self.keep_best,
            monitors=guarded(self.monitors, self.nan_guard),
            batch=self.batch,
            rate=self.rate,
            reduction=self.reduction,
            strategy=self.strategy,
            offload=self.offload,
        )

    def check(self) -> None:
        """Check the job before any worker starts.

        Checks everything that can be known by then: columns, types, cache, storage.

        Raises `MissingColumn`, `WrongType`, `CacheUnusable`, `WriteFailed` for a storage without room, or
        `InvalidOption` for one that cannot be written or a strategy whose package is missing.
        """
        for data in self._datas:
            data.validate_columns()
        if self.cache is not None:
            self.cache.open()
        require_package(self.strategy)
        _check_writable(self.storage)


def _check_count(option: str, found: object, least: int) -> None:
    if isinstance(found, bool) or not isinstance(found, int) or found < least:
        raise InvalidOption(f"{option}={found!r} cannot work. Give a whole number >= {least}.", option=option)


def _check_writable(storage: str) -> None:
    location = resolve(storage)
    # A unique name: another job may be checking the same storage at this moment.
    probe = f"{location.path}/.forebay-write-check-{uuid.uuid4().hex}"
    try:
        location.fs.create_dir(location.path, recursive=True)
        try:
            with location.fs.open_output_stream(probe) as stream:
                stream.write(b"forebay")
        except OSError:
            with suppress(OSError):  # a full disk takes the name, and not the content
                location.fs.delete_file(probe)
            raise
        location.fs.delete_file(probe)
    except OSError as error:
        if error.errno in NO_ROOM:  # another machine may have some
            raise write_failed("a first file of the run", location.uri, error, "Make room there.") from redacted(error)
        raise InvalidOption(
            f"storage={location.uri!r} cannot be written ({redact(str(error))}). "
            "Give a folder or URI this user may write to.",
            storage=location.uri,
        ) from redacted(error)
