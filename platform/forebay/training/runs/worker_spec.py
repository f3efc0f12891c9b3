"""Specification of a run's workers, and its pickling."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial

from forebay.data.cache.spec import CacheSpec
from forebay.errors import BadJob
from forebay.runtime.pickling import NotPicklable, pickled, unpickled
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.job.resources import Resources
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import TrainFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Everything that a worker needs, except its `World`.

    `nodes` are the ids of the cluster's nodes at the run's start: one list for all caches.
    """

    name: str
    train: TrainFunction
    train_spec: TrainSpec
    resources: Resources
    cache: CacheSpec | None
    checkpoint_config: CheckpointConfig
    hang_timeout_s: float = 120.0
    nodes: tuple[str, ...] = ()


def pack(spec: WorkerSpec) -> bytes:
    """Pickle `spec` for another process.

    Code of installed packages is pickled by name. Code of the user's own files (a job loaded by path, a notebook, a
    test) is pickled by value: the other process may be unable to import it. Raises `BadJob`, naming the parts that
    cannot be pickled, and `Unfingerprintable` if a function of the data reads what was changed since it was given.
    """
    for data in (spec.train_spec.data, spec.train_spec.held_out):
        if data is not None:
            data.validate_functions()
    try:
        return pickled(spec)
    except NotPicklable as error:
        raise _not_pickled(spec, error) from error


def _not_pickled(spec: WorkerSpec, error: NotPicklable) -> BadJob:
    parts = {"the data": spec.train_spec, "the cache": spec.cache, **_parts_of(spec.train)}
    stuck = [f"{name} ({reason})" for name, part in parts.items() if (reason := _why_not_pickled(part))]
    title = title_of(spec.train)
    return BadJob(
        f"the train function {title} cannot be sent to a worker process: "
        f"{', '.join(stuck) or error}. Make locks, connections, open files and "
        f"the like within {title}, or use workers=1 and driver='local'.",
        train=title,
    )


def unpack(payload: bytes) -> WorkerSpec:
    """Load the specification from the result of `pack`."""
    spec = unpickled(payload)
    assert isinstance(spec, WorkerSpec)
    return spec


def title_of(train: object) -> str:
    """Name of a train function."""
    while isinstance(train, partial):
        train = train.func
    return str(getattr(train, "__name__", type(train).__name__))


def _parts_of(train: object) -> dict[str, object]:
    """Return the parts that are pickled with a train function.

    Arguments of a `partial`, and the outer variables that it uses.
    """
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
        pickled(part)
    except NotPicklable as error:
        return str(error)
    return None
