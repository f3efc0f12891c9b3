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
    """Starts the workers of a job, follows them, replaces those that die, and changes how many they are.

    Laws: `job.check()` comes before any worker; callbacks are called in this process, in the order of events, from the
    thread that called `run`; a train function that raises ends the run at once with a `RunFailed` that shows its
    traceback (a `ForebayError` as itself), and so does one that hangs, with `Hung`; only dead workers are replaced, at
    most `job.max_failures` times, and training goes on from the newest commit; a run of the same name continues, one
    that is finished returns its result without training, and one that is under way is refused with `InvalidOption`; a
    train function that returns before the last epoch unasked is a `BadJob`; no process, actor, placement group or
    environment variable is left behind, whatever is raised.

    Of elastic jobs: the world changes only at a saved commit, the one that ends an epoch if that is where it was asked
    for; a change that was asked for redoes no step and counts as no failure; `job.elastic`'s bounds are kept; a size
    that cannot be had yet is waited for while the workers that are there train on; `Started.world_size` is always the
    size that trains, and `Resized` comes before it where it changed as was asked.
    """

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result: ...


# By name, so that the local driver is there without Ray.
_DRIVERS = {
    "local": ("forebay.driver.local.driver", "LocalDriver"),
    "ray": ("forebay.driver.ray_train.driver", "RayTrainDriver"),
    "horovod": ("forebay.driver.horovod.driver", "HorovodDriver"),
}


def run(job: Job, driver: str | Driver = "ray", callbacks: Sequence[Callback] = ()) -> Result:
    """Train `job` and return what came out.

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
