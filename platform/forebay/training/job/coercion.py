"""Conversion of command-line arguments to annotated types."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from forebay.errors import BadParameter
from forebay.training.job.duration import Seconds

UNIONS = (typing.Union, types.UnionType)
SEQUENCES = (list, tuple, set, frozenset, collections.abc.Sequence)


def coerce(name: str, value: object, annotation: Any) -> Any:
    """Convert `value` to the type `annotation`.

    Texts have the usual forms of a command line. `workers: int` takes "2", `flag: bool` takes "yes", `label: str |
    None` takes "none", and `hidden: tuple[int, ...]` takes "64,32" as well as "[64, 32]". Raises `BadParameter` for
    a value that does not fit.
    """
    try:
        adapter = TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        if isinstance(value, annotation if isinstance(annotation, type) else ()):
            return value
        raise BadParameter(
            f"{name} is a {name_of_type(annotation)}, which cannot be written as text. Let the job take a number, a "
            "string, a path, a list or a dict there.",
            parameter=name,
        ) from error
    try:
        return _validated(adapter, value, annotation)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise BadParameter(
            f"{name}={value} is not of type {name_of_type(annotation)} ({reason}). Give {name}= a value of that type.",
            parameter=name,
        ) from error


def name_of_type(annotation: Any) -> str:
    """Return the source form of a type.

    For example `int`, `str | None`, `tuple[int, ...]`.
    """
    if annotation == Seconds:
        return "Seconds"
    annotation = _without_alias(annotation)
    if typing.get_origin(annotation) in UNIONS:
        return " | ".join(name_of_type(part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(map(repr, typing.get_args(annotation)))
    if annotation is types.NoneType:
        return "None"
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def _validated(adapter: TypeAdapter[Any], value: object, annotation: Any) -> Any:
    if not isinstance(value, str):
        return adapter.validate_python(value)
    kinds = _kinds(annotation)
    if types.NoneType in kinds and value.lower() == "none":
        return None
    if value.startswith(("[", "{")) and str not in kinds:
        return adapter.validate_json(value)
    if any(kind in SEQUENCES for kind in kinds) and str not in kinds:
        return adapter.validate_python([part.strip() for part in value.split(",") if part.strip()])
    return adapter.validate_python(value)


def _kinds(annotation: Any) -> set[Any]:
    """Return the plain types of an annotation.

    For `list[int] | None`, list and NoneType.
    """
    annotation = _without_alias(annotation)
    origin = typing.get_origin(annotation)
    if origin in UNIONS:
        return {kind for part in typing.get_args(annotation) for kind in _kinds(part)}
    if origin is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    return {origin or annotation}


def _without_alias(annotation: Any) -> Any:
    """Type that a name stands for.

    The name is an alias of Python 3.12 (`type Sizes = list[int]`) or a `NewType`.
    """
    while True:
        named = typing.get_origin(annotation) or annotation
        if type(named).__name__ == "TypeAliasType":  # of typing, or of typing_extensions before 3.12
            annotation = named.__value__
        elif isinstance(named, typing.NewType):
            annotation = named.__supertype__
        else:
            return annotation
