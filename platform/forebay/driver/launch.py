"""What a worker process is started with, how it gets there, and what it does first."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import cloudpickle
import torch

from forebay.cache.disk import DiskCache
from forebay.cache.lease import named_user
from forebay.cache.payload import own_code_by_value
from forebay.cache.source import SourceProvider
from forebay.cache.spec import CacheSpec
from forebay.errors import BadJob, Hung, InvalidOption
from forebay.job.job import Resources
from forebay.train.assignment import Assignment
from forebay.train.collective import Collective
from forebay.train.commits import Commits
from forebay.train.events import Reporter, Started
from forebay.train.safekeeping import Safekeeping
from forebay.train.torch_collective import is_timeout
from forebay.train.worker import TrainFunction, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a worker needs besides its place among the others."""

    name: str
    train: TrainFunction
    assignment: Assignment
    resources: Resources
    cache: CacheSpec | None
    safekeeping: Safekeeping
    hang_timeout_s: float = 120.0


def pack(launch: Launch) -> bytes:
    """Pickle `launch` for another process.

    Code of installed packages travels as names. Code of the user's own files (a job loaded by path, a notebook, a test)
    travels as itself, since the other process may not be able to import it. Raises `BadJob`, naming what cannot travel.
    """
    with own_code_by_value():
        try:
            return bytes(cloudpickle.dumps(launch))
        except Exception as error:  # what a job holds may raise anything
            parts = {"the data": launch.assignment, "the cache": launch.cache, **_parts_of(launch.train)}
            stuck = [f"{name} ({reason})" for name, part in parts.items() if (reason := _why_not_pickled(part))]
            title = title_of(launch.train)
            raise BadJob(
                f"the train function {title} cannot be sent to a worker process: "
                f"{', '.join(stuck) or f'{type(error).__name__}: {error}'}. Make locks, connections, open files and "
                f"the like within {title}, or use workers=1 and driver='local'.",
                train=title,
            ) from error


def unpack(payload: bytes) -> Launch:
    """What `pack` was given."""
    launch = cloudpickle.loads(payload)
    assert isinstance(launch, Launch)
    return launch


Watch = Callable[[Callable[[], Mapping[str, float]]], AbstractContextManager[object]]
"""Given a function that tells what a worker has counted so far, a context to train in."""


def _unwatched(_counted: Callable[[], Mapping[str, float]]) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a worker came to its end: with all epochs trained, `stopped` for a reason, or `parting`.

    `parting` is the world size to go on with from the newest commit, which every rank has left at the same step.
    """

    stopped: str | None = None
    parting: int | None = None


def work(
    launch: Launch,
    collective: Collective,
    cache: DiskCache | SourceProvider | None,
    reporter: Reporter,
    commits: Commits,
    watch: Watch = _unwatched,
) -> Outcome:
    """Train to the end as one of the workers.

    Raises `BadJob` for a train function that returns before the last epoch though nobody asked it to, and `Hung` where
    another rank did not answer within the job's `hang_timeout_s`.
    """
    if collective.world.is_first:
        reporter.report(
            Started(
                name=launch.name,
                world_size=collective.world.size,
                epochs=launch.assignment.epochs,
                num_batches=launch.assignment.data.num_batches,
            )
        )
    worker = Worker(launch.assignment, collective, cache, commits, reporter)
    with named_user(launch.name), watch(worker.counted), _hang_named(launch, collective):
        worker.run(launch.train)
    if not worker.is_finished and worker.stopped is None and worker.parting is None:
        raise BadJob(
            f"the train function returned in epoch {worker.epoch + 1} of {worker.epochs}, after step {worker.step}. "
            "Iterate worker.loader() to its end and commit every step; to end a run early, let a callback call "
            "control.stop(reason).",
            epoch=worker.epoch,
            step=worker.step,
        )
    return Outcome(stopped=worker.stopped, parting=worker.parting)


@contextmanager
def _hang_named(launch: Launch, collective: Collective) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_timeout(error):
            raise
        rank = collective.world.rank
        raise Hung(
            f"rank {rank} of run {launch.name!r} waited in vain for another rank, with hang_timeout_s="
            f"{launch.hang_timeout_s:g}: one of them hangs, though its process lives. Look for a rank that takes "
            "another number of steps, waits for a lock, or reads without an end; if a step may take that long, raise "
            f"hang_timeout_s. What was committed is kept: run {launch.name!r} again to continue.",
            rank=rank,
            timeout_s=launch.hang_timeout_s,
        ) from error


def title_of(train: object) -> str:
    """The train function's name."""
    while isinstance(train, partial):
        train = train.func
    return str(getattr(train, "__name__", type(train).__name__))


def device_of(resources: Resources, local_rank: int) -> torch.device:
    """The GPU of this worker if it asks for one, else the CPU. Raises `InvalidOption` where there is no GPU."""
    if resources.gpus == 0:
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if found == 0:
        raise InvalidOption(
            f"Resources(gpus={resources.gpus}) was asked for, but PyTorch sees no GPU here. Set gpus=0, or install a "
            "build of PyTorch for this machine's GPUs.",
            gpus=resources.gpus,
        )
    return torch.device("cuda", local_rank % found)


def _parts_of(train: object) -> dict[str, object]:
    """What a train function takes along: arguments of a `partial`, and the variables around it that it uses."""
    if isinstance(train, partial):
        given = {f"argument {number + 1}": value for number, value in enumerate(train.args)}
        given |= {f"argument {name!r}": value for name, value in train.keywords.items()}
        return given | _parts_of(train.func)
    if not inspect.isfunction(train):
        return {title_of(train): train}
    try:
        around = inspect.getclosurevars(train)
    except ValueError:  # a variable around it has no value yet
        return {title_of(train): train}
    return {f"variable {name!r}": value for name, value in {**around.globals, **around.nonlocals}.items()}


def _why_not_pickled(part: object) -> str | None:
    try:
        cloudpickle.dumps(part)
    except Exception as error:  # noqa: BLE001 - what a job holds may raise anything
        return f"{type(error).__name__}: {error}"
    return None
