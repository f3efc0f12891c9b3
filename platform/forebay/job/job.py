"""What to run, frozen: a train function, its data, its workers and where its results go."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay.cache.spec import CacheSpec
from forebay.errors import InvalidOption
from forebay.storage.credentials import redact, redacted
from forebay.storage.filesystem import resolve
from forebay.train.assignment import Assignment
from forebay.train.data import Data
from forebay.train.worker import Worker

NAME_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What each worker needs of its node. Raises `InvalidOption` for less than nothing, or nothing at all."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus) < 0 or self.cpus + self.gpus == 0:
            raise InvalidOption(
                f"Resources(cpus={self.cpus}, gpus={self.gpus}) cannot run a worker. "
                "Give a positive share of CPUs, GPUs or both."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run: `train(worker)` on `workers` workers for `epochs` epochs over `data`.

    `name` is the run's folder under `storage` (a path or any URI `forebay.storage` knows); the same name run again
    resumes. `cache` may be None: then every epoch reads the source. `commit_every` counts steps between saved commits,
    `max_failures` how often lost workers are replaced. Raises `InvalidOption` or `TooManyRanks` for values that can
    never work; `check()` looks at the outside world.
    """

    train: Callable[[Worker], None]
    data: Data
    held_out: Data | None = None
    epochs: int = 1
    workers: int = 1
    resources: Resources = field(default_factory=Resources)
    cache: CacheSpec | None = field(default_factory=CacheSpec)
    name: str | None = None
    storage: str = "runs"
    seed: int = 0
    commit_every: int = 100
    max_failures: int = 3

    def __post_init__(self) -> None:
        if not callable(self.train):
            raise InvalidOption(f"train={self.train!r} is no function. Give `def train(worker: Worker) -> None`.")
        for option, least in (("epochs", 1), ("workers", 1), ("seed", 0), ("commit_every", 1), ("max_failures", 0)):
            _check_count(option, getattr(self, option), least)
        if self.name is not None and not NAME_FORM.fullmatch(self.name):
            raise InvalidOption(
                f"name={self.name!r} cannot name a folder. Use letters, digits, '.', '_' and '-', beginning with a "
                "letter or a digit.",
                name=self.name,
            )
        for data in self._datas:
            data.check_world_size(self.workers)

    @property
    def _datas(self) -> tuple[Data, ...]:
        return (self.data,) if self.held_out is None else (self.data, self.held_out)

    @property
    def assignment(self) -> Assignment:
        """What each worker must know of this job."""
        return Assignment(
            data=self.data,
            held_out=self.held_out,
            epochs=self.epochs,
            seed=self.seed,
            commit_every=self.commit_every,
        )

    def check(self) -> None:
        """Find out, before a worker starts, everything that can be known: columns, types, cache, storage.

        Raises `MissingColumn`, `WrongType`, `CacheUnusable`, or `InvalidOption` for a storage that cannot be written.
        """
        for data in self._datas:
            data.check()
        if self.cache is not None:
            self.cache.open()
        _check_writable(self.storage)


def _check_count(option: str, found: object, least: int) -> None:
    if isinstance(found, bool) or not isinstance(found, int) or found < least:
        raise InvalidOption(f"{option}={found!r} cannot work. Give a whole number >= {least}.", option=option)


def _check_writable(storage: str) -> None:
    place = resolve(storage)
    # A name of its own: another job may be checking the same storage just now.
    probe = f"{place.path}/.forebay-write-check-{uuid.uuid4().hex}"
    try:
        place.fs.create_dir(place.path, recursive=True)
        with place.fs.open_output_stream(probe) as stream:
            stream.write(b"forebay")
        place.fs.delete_file(probe)
    except OSError as error:
        raise InvalidOption(
            f"storage={place.uri!r} cannot be written ({redact(str(error))}). "
            "Give a folder or URI this user may write to.",
            storage=place.uri,
        ) from redacted(error)
