"""Check of a task's arguments, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.errors import BadParameter, ForebayError
from forebay.fleet.spec.fields import argument_text, fault
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.fleet.spec.signature import read_signature
from forebay.training.job.recipe import Parameter, checked

FUNCTIONS = ("sweep", "job")
"""Functions of a job file that `forebay run` calls: the first that exists."""


def check_program(spec: JobSpec, task: Task, folder: str | Path = ".") -> None:
    """Check a task's arguments against its job function.

    The job file is below `folder`. A command has none. The function is not called: what it prepares is prepared where
    the run starts. Raises `InvalidJobSpec` for a file that is missing or no Python, an argument that the function does
    not take or needs, and a value of another type, as it is or as the text on the run's command line.
    """
    if task.run is None:
        return
    try:
        taken = read_signature(str(Path(folder) / task.run), FUNCTIONS)
        given = checked(taken, task.args)
        texts = {name: argument_text(value) for name, value in task.args.items()}
        _require_equal({each.name: each for each in taken}, given, checked(taken, texts), texts)
    except ForebayError as error:
        raise fault(str(error), "task", spec.task.index(task), "run") from error


def _require_equal(
    taken: Mapping[str, Parameter], given: Mapping[str, object], got: Mapping[str, object], texts: Mapping[str, str]
) -> None:
    """Raise `BadParameter` for a value that its text does not stand for."""
    for name, value in given.items():
        is_known = taken[name].annotation is not Any  # the run knows the type
        if is_known and value != got[name] and repr(value) != repr(got[name]):
            raise BadParameter(
                f"{name} reaches the job as text on a command line, and there {texts[name]!r} is {got[name]!r}, not "
                f"{value!r}. Write a text, or give the parameter one type, without str.",
                parameter=name,
            )
