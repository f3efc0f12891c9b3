"""Program of a task: its job file, called with its arguments before anything is placed."""

from __future__ import annotations

import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from forebay.errors import ForebayError, InvalidJobSpec
from forebay.fleet.spec.fields import fault
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.fleet.spec.quantity import quantity
from forebay.sweep.sweep import Sweep
from forebay.training.job.job import Job
from forebay.training.job.recipe import call_for, load_recipe


def load_program(spec: JobSpec, task: Task, folder: str | Path = ".") -> Job | Sweep | None:
    """Job or sweep of a task, under the spec's name, storage and workers. None for a command.

    Imports the job file below `folder` and calls its function with `args`, as `forebay run` does. Raises
    `InvalidJobSpec` for a file that does not load, an argument that it does not take, or a `Resources` of its job that
    one worker of the task does not have.
    """
    if task.run is None:
        return None
    number = spec.task.index(task)
    file = Path(folder) / task.run
    beside = str(file.absolute().parent)
    if beside not in sys.path:
        # As with `python job.py`: a job file may import files beside it.
        sys.path.insert(0, beside)
    try:
        made = call_for((Job, Sweep), load_recipe(str(file), ("sweep", "job")), task.args)
        return _under_spec(spec, task, made)
    except InvalidJobSpec as error:
        raise fault(str(error), "task", number, "workers") from error
    except ForebayError as error:
        raise fault(str(error), "task", number, "run") from error


def _under_spec(spec: JobSpec, task: Task, made: Job | Sweep) -> Job | Sweep:
    if isinstance(made, Sweep):
        return replace(made, name=spec.run_name(task), storage=spec.storage)
    for name, needed, given in (
        ("cpu", made.resources.cpus, quantity(task.workers.cpu)),
        ("gpus", made.resources.gpus, Decimal(task.workers.gpus)),
    ):
        if Decimal(str(needed)) > given:
            raise InvalidJobSpec(
                f"one worker of {task.run} needs {needed:g} {name}, and a worker of the task has "
                f"{given.normalize():f}. Set workers.{name} to {needed:g} or more, or use less in Resources(...)."
            )
    is_fixed = task.workers.min == task.workers.largest
    return replace(
        made,
        name=spec.run_name(task),
        storage=spec.storage,
        workers=task.workers.min if is_fixed else 1,
        elastic=None if is_fixed else task.workers.elastic,
    )
