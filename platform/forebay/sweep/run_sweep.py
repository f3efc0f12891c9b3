"""Entry point of a sweep.

Importing it needs no Ray.
"""

from __future__ import annotations

import time

from forebay.errors import validate_type
from forebay.runtime.extras import missing_package
from forebay.sweep.result import SweepResult
from forebay.sweep.sweep import Sweep


def run_sweep(sweep: Sweep, show: bool = True) -> SweepResult:
    """Run the trials of `sweep`, or resume them.

    `show` keeps a table of the trials up to date. Everything that can be checked is checked before a trial starts.
    Ctrl-C, SIGTERM, `forebay stop` and the deadline make all trials save a checkpoint and end. Running the same name
    again resumes from there. After a SIGTERM, raises `SystemExit` with `ExitCode.TERMINATED`.

    Raises:
        BadJob: A name that is not a parameter, a missing parameter, or values of a wrong type.
        InvalidOption: A space, scheduler, searcher or driver that cannot work, or a sweep that is already running.
        MissingPackage: Ray is not installed.
        UnsupportedRay: The installed Ray lacks a name that sweeps use.
        SweepFailed: Every trial failed, or Ray Tune's notes of an earlier start are lost.
    """
    began = time.monotonic()
    validate_type("sweep", sweep, Sweep, "an fb.Sweep, such as fb.Sweep(job, space, metric=...)")
    try:
        from forebay.sweep.tuning import tune_trials  # noqa: PLC0415 - Ray Tune is an extra, and takes seconds
    except ImportError as error:
        if missing := missing_package(error, "run_sweep"):
            raise missing from error
        raise
    return tune_trials(sweep, began, show=show)
