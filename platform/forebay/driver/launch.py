"""What a worker process is started with, how it gets there, and what it does first."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import cloudpickle
import torch

from forebay.cache.disk import DiskCache
from forebay.cache.source import SourceProvider
from forebay.cache.spec import CacheSpec
from forebay.errors import InvalidOption
from forebay.job.job import Resources
from forebay.train.assignment import Assignment
from forebay.train.collective import Collective
from forebay.train.commits import CommitDirectory
from forebay.train.events import Reporter, Started
from forebay.train.worker import TrainFunction, Worker

COLLECTIVE_TIMEOUT_S = 120.0
"""How long ranks wait for a peer in a collective before they call it hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a worker needs besides its place among the others. `commits` is the URI of the commit directory."""

    name: str
    train: TrainFunction
    assignment: Assignment
    resources: Resources
    cache: CacheSpec | None
    commits: str


def pack(launch: Launch) -> bytes:
    """Pickle `launch` for another process.

    Code of installed packages travels as names. Code of the user's own files (a job loaded by path, a notebook, a test)
    travels as itself, since the other process may not be able to import it.
    """
    with _pickled_by_value(_own_modules()):
        return bytes(cloudpickle.dumps(launch))


def unpack(payload: bytes) -> Launch:
    """What `pack` was given."""
    launch = cloudpickle.loads(payload)
    assert isinstance(launch, Launch)
    return launch


def work(
    launch: Launch, collective: Collective, cache: DiskCache | SourceProvider | None, reporter: Reporter
) -> str | None:
    """Train to the end as one of the workers; the answer is why it stopped early, if it did."""
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
    worker.run(launch.train)
    return worker.stopped


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


def _own_modules() -> list[ModuleType]:
    """Modules that do not belong to Python, to an installed package or to Forebay.

    `__main__` is not among them: cloudpickle always takes it by value.
    """
    paths = sysconfig.get_paths()
    installed = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    loaded = list(sys.modules.items())
    return [module for name, module in loaded if _is_own(name, module, tuple(installed))]


def _is_own(name: str, module: ModuleType, installed: tuple[str, ...]) -> bool:
    path = getattr(module, "__file__", None)
    if path is None or path.startswith(installed) or getattr(module, "__name__", None) != name:
        return False
    return name.partition(".")[0] not in {*sys.builtin_module_names, *sys.stdlib_module_names, "__main__", "forebay"}


@contextmanager
def _pickled_by_value(modules: list[ModuleType]) -> Iterator[None]:
    already = cloudpickle.list_registry_pickle_by_value()
    marked = [module for module in modules if module.__name__ not in already]
    for module in marked:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in marked:
            cloudpickle.unregister_pickle_by_value(module)
