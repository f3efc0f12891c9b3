"""Recipes: functions `job(...) -> Job` of job files.

They are loaded by path and called with texts as arguments.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import stat
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from forebay.errors import BadJob, BadParameter, ForebayError, ReadFailed
from forebay.runtime.foreign_code import message_of
from forebay.runtime.formatting import did_you_mean, did_you_mean_file
from forebay.training.job.coercion import coerce, name_of_type
from forebay.training.job.job import Job

Recipe = Callable[..., Any]

FUNCTION = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Parameter of a recipe.

    Texts are converted to the type `annotation`.
    """

    name: str
    annotation: Any
    required: bool
    default: Any

    def __str__(self) -> str:
        known = f"{self.name}: {name_of_type(self.annotation)}"
        return f"{known} (required)" if self.required else f"{known} = {self.default!r}"


def load_recipe(path: str, functions: Sequence[str] = (FUNCTION,)) -> Recipe:
    """Load the recipe of the Python file at `path`.

    The function `job`, or the first existing one of `functions`. The module is named after the file and its whole path,
    so that it never hides an installed one, and stays in `sys.modules`. Raises `BadJob` for a file that is missing,
    raises when it is run, or defines no such function.
    """
    file = job_file(path)
    module = _run_file(file)
    found = [recipe for name in functions if inspect.isfunction(recipe := getattr(module, name, None))]
    if not found:
        raise no_function(path, functions)
    return found[0]


def no_function(path: str, functions: Sequence[str]) -> BadJob:
    """Return the error of a job file without a recipe."""
    return BadJob(
        f"{path} defines no function {' or '.join(map(repr, functions))}. Add `def job(...) -> Job:` to it; its "
        "parameters are what the command line takes.",
        path=path,
    )


def job_file(path: str) -> Path:
    """Return the absolute path of a job file.

    Raises `BadJob` for a missing one.
    """
    file = Path(path).expanduser().absolute()
    try:
        is_there = stat.S_ISREG(file.stat().st_mode)
    except (OSError, ValueError) as error:
        if _is_machine_fault(error):
            raise _machine_fault(str(file), error, path=str(file)) from error
        is_there = False
    if not is_there:
        raise BadJob(
            f"there is no job file {path!r}.{did_you_mean_file(file)} Give the path of a Python file with a function "
            "job(...) -> Job."
        )
    return file


def parameters(recipe: Recipe) -> tuple[Parameter, ...]:
    """Return the parameters of `recipe`.

    Raises `BadJob` for annotations that cannot be resolved, for *args and **kwargs.
    """
    try:
        signature = inspect.signature(recipe, eval_str=True)
    except (NameError, AttributeError, SyntaxError) as error:
        raise BadJob(
            f"an annotation of {recipe.__name__}() does not evaluate ({error}). Import its names at the top of the job "
            "file, not under TYPE_CHECKING."
        ) from error
    return tuple(_parameter(each) for each in signature.parameters.values())


def call_recipe(recipe: Recipe, values: Mapping[str, object]) -> Job:
    """Call `recipe` with `values`, and return its job.

    Texts are converted to the types of the annotations.

    Raises `BadJob` for an unknown or missing parameter, a value of a wrong type, or a result that is not a `Job`.
    Exceptions of the recipe itself are not caught.
    """
    made: Job = call_for((Job,), recipe, values)
    return made


def call_for(kinds: tuple[type, ...], recipe: Recipe, values: Mapping[str, object], *, called: str = "this job") -> Any:
    """Call a recipe that makes one of `kinds`.

    Same as `call_recipe`. Errors name it as `called`.
    """
    given = checked(parameters(recipe), values, called=called)
    made = recipe(**given)
    if not isinstance(made, kinds):
        wanted = " or a ".join(kind.__name__ for kind in kinds)
        ending = " or ".join(f"`return {kind.__name__}(...)`" for kind in kinds)
        raise BadJob(f"{recipe.__name__}() returned {type(made).__name__}, not a {wanted}. End it with {ending}.")
    return with_parameters(made, recipe, given) if isinstance(made, Job) else made


def checked(taken: Sequence[Parameter], values: Mapping[str, object], *, called: str = "this job") -> dict[str, object]:
    """Return `values` in the types of the parameters `taken`.

    Raises `BadParameter` for an unknown or missing parameter, and for a value of a wrong type. Errors name the recipe
    as `called`.
    """
    known = {parameter.name: parameter for parameter in taken}
    for name in values:
        if name not in known:
            takes = f"{did_you_mean(name, known)} It takes:{_listing(known.values())}"
            raise BadParameter(f"{called} has no parameter {name!r}.{takes}", parameter=name)
    missing = [name for name, parameter in known.items() if parameter.required and name not in values]
    if missing:
        raise BadParameter(
            f"{called} needs {', '.join(f'{name}=...' for name in missing)}. It takes:{_listing(known.values())}",
            parameter=missing[0],
        )
    return {name: coerce(name, value, known[name].annotation) for name, value in values.items()}


def with_parameters(job: Job, recipe: Recipe, given: Mapping[str, object]) -> Job:
    """Return the job with its parameters recorded.

    Those given, and the defaults of the others.
    """
    defaults = {each.name: each.default for each in parameters(recipe) if not each.required}
    return replace(job, parameters={**defaults, **given, **job.parameters})


class FreshSource(importlib.machinery.SourceFileLoader):
    """Loader that always compiles the file.

    Cached bytecode is matched by size and second, but a job file may change within a second.
    """

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - importlib's signature
        return self.source_to_code(self.get_data(self.path), self.path)


def _run_file(file: Path) -> ModuleType:
    name = f"forebay_job_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file, loader=FreshSource(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the job file look up their module here
    try:
        spec.loader.exec_module(module)
    except ForebayError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:  # a job file may raise any exception
        del sys.modules[name]
        line = f"{file}{_line_of(error, file)}"
        if _is_machine_fault(error):
            raise _machine_fault(line, error, path=str(file)) from error
        raise BadJob(f"{line} does not load: {type(error).__name__}: {message_of(error)}.", path=str(file)) from error
    return module


_MACHINE_FAULTS = {
    *(errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.ENODEV, errno.ENXIO),
    *(getattr(errno, name, errno.EIO) for name in ("EREMOTEIO", "EUCLEAN")),  # of Linux alone
    *(errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
}
"""Errors of a disk, a mount, a network or a full machine: another attempt, on another machine, may be free of them."""


def _is_machine_fault(error: BaseException) -> bool:
    """Whether an exception, or one behind it, says that the machine or its file system failed."""
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        if isinstance(behind, OSError) and behind.errno in _MACHINE_FAULTS:
            return True
        # A library that cannot be read: dlopen gives the error in words alone.
        if isinstance(behind, ImportError) and str(behind).endswith(tuple(map(os.strerror, _MACHINE_FAULTS))):
            return True
        seen.add(id(behind))
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)
    return False


def _machine_fault(what: str, error: BaseException, *, path: str) -> ReadFailed:
    return ReadFailed(
        f"{what} cannot be loaded: {type(error).__name__}: {message_of(error)}. That is a fault of this machine or of "
        "its storage: start again, or on another machine.",
        path=path,
    )


def _line_of(error: BaseException, file: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError):
        lines.append(error.lineno)
    return f", line {lines[-1]}," if lines else ""


def _parameter(parameter: inspect.Parameter) -> Parameter:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise require_name(str(parameter))
    required, annotation = parameter.default is inspect.Parameter.empty, parameter.annotation
    if annotation is inspect.Parameter.empty:
        annotation = str if required else type_of_default(parameter.default)
    return Parameter(name=parameter.name, annotation=annotation, required=required, default=parameter.default)


def type_of_default(default: object) -> type:
    """Infer a parameter's type from its default."""
    return str if default is None else type(default)


def require_name(parameter: str) -> BadJob:
    """Return the error of a parameter without `name=value`.

    `*args`, `**kwargs`, or one before a `/`.
    """
    return BadJob(f"the job function takes {parameter}. Give every parameter a name: the names are its command line.")


def _listing(known: Any) -> str:
    return "".join(f"\n  {parameter}" for parameter in known) or " no parameters."
