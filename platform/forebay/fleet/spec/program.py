"""Check of a task's arguments, without running it."""

from __future__ import annotations

from pathlib import Path

from forebay.errors import ForebayError
from forebay.fleet.spec.fields import fault
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.fleet.spec.signature import read_signature
from forebay.training.job.recipe import checked

FUNCTIONS = ("sweep", "job")
"""Functions of a job file that `forebay run` calls: the first that exists."""


def check_program(spec: JobSpec, task: Task, folder: str | Path = ".") -> None:
    """Check a task's arguments against its job function.

    The job file is below `folder`. A command has none. The function is not called: what it prepares is prepared where
    the run starts. Raises `InvalidJobSpec` for a file that is missing or no Python, an argument that the function does
    not take or needs, and a value of another type.
    """
    if task.run is None:
        return
    try:
        checked(read_signature(str(Path(folder) / task.run), FUNCTIONS), task.args)
    except ForebayError as error:
        raise fault(str(error), "task", spec.task.index(task), "run") from error
