"""`Driver` protocol, and `run`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Protocol

from forebay.errors import InvalidOption, RunFailed, validate_type
from forebay.ray_cluster.private_names import EVERYTHING, RAY_TRAIN, check_ray
from forebay.runtime.extras import missing_package
from forebay.runtime.formatting import did_you_mean
from forebay.runtime.late_import import late
from forebay.training.driver.worker_error import shortage_remedy
from forebay.training.job.job import Job
from forebay.training.run_report.report_page import ReportAtEnd
from forebay.training.runs.control import Callback
from forebay.training.runs.result import Result
from forebay.training.runs.worker_spec import title_of


class Driver(Protocol):
    """Runs a job: starts, watches, replaces and resizes its workers.

    Laws of every driver:
    - `job.check()` is called before any worker starts.
    - Callbacks are called in this process, in the order of events, from the thread that called `run`.
    - A train function that raises ends the run at once. A `ForebayError` is raised as itself, any other exception as a
      `RunFailed` with its traceback. A train function that hangs ends the run with `Hung`.
    - Only dead workers are replaced, at most `job.max_failures` times. Training continues from the newest checkpoint.
    - A run of the same name continues. A finished run returns its result without training. A name whose run is under
      way anywhere is refused with `UnderWay`, or followed, as `job.start` says.
    - A run that a later attempt has taken over ends with `Fenced`, and keeps nothing more.
    - A train function that returns before the last epoch without a request to stop is a `BadJob`.
    - No process, actor, placement group or environment variable is left behind, also after an exception.

    Laws for elastic jobs:
    - The world changes only at a checkpoint. A request on `EpochEnded` takes effect at the checkpoint that ends the
      epoch.
    - A requested change repeats no step and counts as no failure. The target stays within the job's bounds.
    - While the target cannot be reached, training continues with the present workers.
    - `Started.world_size` is always the world size that trains. After a requested change, `Resized` comes before
      `Started`.
    """

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result: ...


# By name: the local driver must import without Ray.
_DRIVERS = {
    "local": ("forebay.training.driver.local.driver", "LocalDriver"),
    "ray": ("forebay.training.driver.ray_train.driver", "RayTrainDriver"),
    "horovod": ("forebay.training.driver.horovod.driver", "HorovodDriver"),
}
_PRIVATE = {"ray": RAY_TRAIN, "horovod": EVERYTHING}
"""Private names of Ray that a driver uses."""


def run(job: Job, driver: str | Driver = "ray", callbacks: Sequence[Callback] = ()) -> Result:
    """Train `job` and return its result.

    `driver` is `"ray"`, `"horovod"`, `"local"` or an object that implements `Driver`:
    - `"ray"`: Ray Train. Connects to `RAY_ADDRESS` if that is set, else starts Ray on this machine.
    - `"horovod"`: Elastic Horovod in Ray actors. Connects in the same way.
    - `"local"`: processes of this machine, without Ray.

    At the end of the run, also of one that fails, `report.html` is written into its folder. A notebook shows progress,
    as with `fb.callbacks.progress.Progress()` among the callbacks.

    Raises `InvalidOption` for an unknown driver, another `ForebayError` for invalid input, and `RunFailed` for a run
    that ends without finishing.
    """
    validate_type(
        "job", job, Job, "what the job function returns, as in fb.run(job(...)); a sweep goes to fb.run_sweep"
    )
    validate_type("callbacks", callbacks, Iterable, "a list of functions (event, control)")
    callbacks = tuple(callbacks)
    if others := [each for each in callbacks if not callable(each)]:
        raise InvalidOption(f"callbacks hold {others[0]!r:.200}. Give functions (event, control).")
    found = named_driver(driver) if isinstance(driver, str) else driver
    try:
        return found.run(job, [*_shown(callbacks), ReportAtEnd(job.storage)])
    except (MemoryError, RuntimeError) as error:  # of the driver: workers' errors are RunFailed
        summary = f"{type(error).__name__}: {error}"
        if (remedy := shortage_remedy(summary)) is None:
            raise
        raise RunFailed(
            f"the driver of run {job.name or title_of(job.train)!r} ended with {summary}. {remedy} and run it "
            "again: it continues from its newest checkpoint, if it has one.",
            summary=summary,
        ) from error


def _shown(callbacks: Sequence[Callback]) -> Sequence[Callback]:
    """The callbacks, with progress in a notebook that has none."""
    # Looked for without an import: elsewhere it would be one more module.
    if "IPython" not in sys.modules or not late("forebay.report.notebook:is_notebook")():
        return callbacks
    progress: Any = late("forebay.training.callbacks.progress:Progress")
    return callbacks if any(isinstance(each, progress) for each in callbacks) else [progress(), *callbacks]


def named_driver(name: str) -> Driver:
    """Driver called `name`.

    Raises `InvalidOption` if the name is unknown, its package is not installed, or the installed Ray cannot carry it.
    """
    if name not in _DRIVERS:
        raise InvalidOption(
            f"driver={name!r} is unknown.{did_you_mean(name, _DRIVERS)} Choose one of "
            f"{', '.join(map(repr, _DRIVERS))}, or give an object with run(job, callbacks).",
            driver=name,
        )
    module, kind = _DRIVERS[name]
    try:
        if name in _PRIVATE:
            check_ray(_PRIVATE[name])
        driver: Driver = getattr(import_module(module), kind)()
    except ImportError as error:
        if missing := missing_package(error, f"driver={name!r} (driver='local' does not)"):
            raise missing from error
        raise
    return driver
