"""What a worker process is started with, how it gets there, and what it does first."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import cloudpickle
import torch

from forebay.cache.disk import DiskCache
from forebay.cache.lease import named_user
from forebay.cache.payload import own_code_by_value
from forebay.cache.source import SourceProvider
from forebay.cache.spec import CacheSpec
from forebay.errors import BadJob, InvalidOption
from forebay.job.job import Resources
from forebay.storage.credentials import Access
from forebay.train.assignment import Assignment
from forebay.train.collective import Collective
from forebay.train.commits import CommitDirectory
from forebay.train.events import Reporter, Started
from forebay.train.worker import TrainFunction, Worker

COLLECTIVE_TIMEOUT_S = 120.0
"""How long ranks wait for a peer in a collective before they call it hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a worker needs besides its place among the others. `commits` is the URI of the commit directory.

    `access` takes the credentials for it along, where they came in a URI.
    """

    name: str
    train: TrainFunction
    assignment: Assignment
    resources: Resources
    cache: CacheSpec | None
    commits: str
    access: Access | None = None


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


def work(
    launch: Launch,
    collective: Collective,
    cache: DiskCache | SourceProvider | None,
    reporter: Reporter,
    watch: Watch = _unwatched,
) -> str | None:
    """Train to the end as one of the workers; the answer is why it stopped early, if it did.

    Raises `BadJob` for a train function that returns before the last epoch though nobody asked it to stop.
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
    worker = Worker(launch.assignment, collective, cache, CommitDirectory(launch.commits), reporter)
    with named_user(launch.name), watch(worker.counted):
        worker.run(launch.train)
    if worker.epoch < worker.epochs and worker.stopped is None:
        raise BadJob(
            f"the train function returned in epoch {worker.epoch + 1} of {worker.epochs}, after step {worker.step}. "
            "Iterate worker.loader() to its end and commit every step; to end a run early, let a callback call "
            "control.stop(reason).",
            epoch=worker.epoch,
            step=worker.step,
        )
    return worker.stopped


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
