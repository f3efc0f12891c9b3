"""Job or sweep of a job file and its arguments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forebay.cli.preparation_display import shown_preparations
from forebay.errors import BadParameter
from forebay.sweep.sweep import Sweep
from forebay.training.job.job import Job
from forebay.training.job.recipe import Parameter, call_for, call_recipe, load_recipe, parameters


def job_of(path: str, words: Sequence[str]) -> Job:
    """Call the job file's `job` with `name=value` arguments.

    Raises `BadJob` for a name that the function has no parameter for.
    """
    values = values_of(words)
    _import_beside(path)
    with shown_preparations():
        return call_recipe(load_recipe(path), values)


def job_or_sweep_of(path: str, words: Sequence[str]) -> Job | Sweep:
    """Call the job file's `sweep`, or its `job` without one.

    Raises as `job_of`.
    """
    values = values_of(words)
    _import_beside(path)
    with shown_preparations():
        made: Job | Sweep = call_for((Job, Sweep), load_recipe(path, ("sweep", "job")), values)
    return made


def parameters_of(path: str) -> tuple[Parameter, ...]:
    """Return what the job file's `sweep`, or its `job` without one, takes. Raises `BadJob`."""
    _import_beside(path)
    return parameters(load_recipe(path, ("sweep", "job")))


def values_of(words: Sequence[str]) -> dict[str, str]:
    """Values of `name=value` arguments, by name.

    Raises `BadParameter` for anything else, and for a repeated name.
    """
    values: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise BadParameter(
                f"{word!r} is not a parameter. Write name=value or --name value, for example epochs=3.", word=word
            )
        if name in values:
            raise BadParameter(f"{name} is given twice: {values[name]!r} and {value!r}. Give it once.", parameter=name)
        values[name] = value
    return values


def _import_beside(path: str) -> None:
    # As with `python job.py`: a job file may import files beside it.
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
