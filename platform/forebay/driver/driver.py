"""Drivers, and the one verb that runs a job on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from forebay.errors import InvalidOption
from forebay.job.job import Job
from forebay.runs.callback import Callback
from forebay.runs.result import Result


class Driver(Protocol):
    """Starts the workers of a job, follows them, replaces lost ones, and changes their number.

    Laws of every driver:
    - `job.check()` comes before any worker.
    - Callbacks are called in this process, in the order of events, from the thread that called `run`.
    - A train function that raises ends the run at once with a `RunFailed` that shows its traceback. A `ForebayError` is
      raised as itself. A train function that hangs ends the run with `Hung`.
    - Only dead workers are replaced, at most `job.max_failures` times. Training continues from the newest checkpoint.
    - A run of the same name continues. A finished run returns its result without training. A name that is being run is
      refused with `InvalidOption`.
    - A train function that returns before the last epoch without a request to stop is a `BadJob`.
    - No process, actor, placement group or environment variable is left behind, whatever is raised.

    Laws for elastic jobs:
    - The world changes only at a checkpoint. A request on `EpochEnded` takes effect at the one that ends the epoch.
    - A requested change repeats no step and counts as no failure. The target stays within the job's bounds.
    - While the target cannot be reached, the workers that are there train on.
    - `Started.world_size` is always the size that trains. `Resized` comes before it after a requested change.
    """

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result: ...


# By name, so that the local driver is there without Ray.
_DRIVERS = {
    "local": ("forebay.driver.local.driver", "LocalDriver"),
    "ray": ("forebay.driver.ray_train.driver", "RayTrainDriver"),
    "horovod": ("forebay.driver.horovod.driver", "HorovodDriver"),
}


def run(job: Job, driver: str | Driver = "ray", callbacks: Sequence[Callback] = ()) -> Result:
    """Train `job` and return its result.

    `driver` is `"ray"` (Ray Train: connects to `RAY_ADDRESS` if set, else starts Ray on this machine), `"horovod"`
    (Elastic Horovod, likewise on Ray's workers), `"local"` (no Ray) or an object of your own. Raises `InvalidOption`
    for an unknown driver, a `ForebayError` for input that cannot work, and `RunFailed` for a run that ends without
    finishing.
    """
    return (named_driver(driver) if isinstance(driver, str) else driver).run(job, callbacks)


def named_driver(name: str) -> Driver:
    """The driver `name`. Raises `InvalidOption` for one that is unknown, or whose package is not installed."""
    if name not in _DRIVERS:
        raise InvalidOption(
            f"driver={name!r} is unknown. Choose one of {', '.join(map(repr, _DRIVERS))}, or give an object with "
            "run(job, callbacks).",
            driver=name,
        )
    module, kind = _DRIVERS[name]
    try:
        driver: Driver = getattr(import_module(module), kind)()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("forebay"):
            raise
        raise InvalidOption(
            f"driver={name!r} needs the package {error.name!r}, which is not installed. Install it "
            f"(pip install 'ray[train]'), or use driver='local'.",
            driver=name,
        ) from error
    return driver
