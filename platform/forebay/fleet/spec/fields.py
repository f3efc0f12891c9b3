"""Field types of a JobSpec: checks and JSON Schema."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import typing
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, cast

from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails

from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.spec.quantity import bytes_quantity, cpu_text
from forebay.training.job.duration import Seconds


def _text_of_number(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Count = Annotated[int, Field(strict=True)]
Price = Annotated[float, Field(strict=True, gt=0)]
Duration = Annotated[
    Seconds,
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": r"^(\d+(\.\d+)?(d|h|min|m|s)?)+$"}, {"type": "number", "minimum": 0}]}
    ),
]
Cpus = Annotated[
    str,
    BeforeValidator(cpu_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}]}),
]
Bytes = Annotated[
    str,
    BeforeValidator(bytes_quantity),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)$"}),
]
EnvValue = Annotated[
    str, BeforeValidator(_text_of_number), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
]
NodeCount = Annotated[
    str,
    BeforeValidator(_text_of_number),
    Field(pattern=r"^[0-9]{1,6}(-[0-9]{1,6})?$"),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": r"^[0-9]{1,6}(-[0-9]{1,6})?$"}, {"type": "integer"}]}),
]
Words = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Scalar = StrictInt | StrictFloat | StrictBool | StrictStr
Argument = Scalar | list[Scalar]


def argument_text(value: Argument) -> str:
    """Return the text of an argument, as a job function gets it from a command line."""
    return value if isinstance(value, str) else json.dumps(value)


@functools.cache
def _adapters(kind: Any) -> Mapping[str, TypeAdapter[Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name]) for field in dataclasses.fields(kind)}


def fault(text: str, *path: str | int) -> InvalidJobSpec:
    """Return the error of the field at `path`.

    `text` says what was found and what to do, without the value of a secret.
    """
    return InvalidJobSpec(f"{dotted(path)}: {text}" if path else text, fault=text, path=path)


def dotted(path: Sequence[str | int]) -> str:
    """Path of a field as people write it.

    >>> dotted(("task", 0, "workers", "min"))
    'task[0].workers.min'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def settle_fields(value: Any) -> None:
    """Convert the fields of a new frozen dataclass.

    Raises `InvalidJobSpec` for the first misfit.
    """
    for name, adapter in _adapters(cast(Hashable, type(value))).items():
        try:
            object.__setattr__(value, name, adapter.validate_python(getattr(value, name)))
        except ValidationError as error:
            raise first_fault(error, (name,)) from None  # its text repeats the value, which may be a secret


def first_fault(error: ValidationError, before: tuple[str | int, ...] = ()) -> InvalidJobSpec:
    """Return pydantic's first error, with the field's path.

    The value is not repeated.
    """
    first = error.errors(include_url=False)[0]
    own = first.get("ctx", {}).get("error")
    path = before + _path(first)
    if isinstance(own, InvalidJobSpec):
        return fault(*cast(Any, (own.fault, *path, *cast(Any, own.path))))
    return fault(str(own) if isinstance(own, InvalidOption) else _text_of(first), *path)


_BRANCHES = frozenset(("int", "float", "bool", "str", "list", "dict"))


def _path(error: ErrorDetails) -> tuple[str | int, ...]:
    # pydantic also names the branch of a union and the validator, which are not in the file.
    parts = [part for part in error["loc"] if isinstance(part, int) or re.fullmatch(r"[\w-]+", part)]
    while parts and parts[-1] in _BRANCHES:
        parts.pop()
    return tuple(part for part in parts if not str(part).startswith("function-"))


def _text_of(error: ErrorDetails) -> str:
    match error["type"]:
        case "missing":
            return "it is missing. Write it."
        case "unexpected_keyword_argument":
            return "this key is unknown. Remove it."
        case "value_error":
            return f"{error['ctx']['error']}."
        case _:
            found = _TOML_NAMES.get(type(error["input"]), type(error["input"]).__name__)
            return f"{_PLAIN.get(error['type'], error['msg'])}, and it is {found}."


_TOML_NAMES = {dict: "a table", list: "a list", tuple: "a list", str: "text", bool: "true or false", int: "a number"}
_PLAIN = {
    "string_type": "It must be text in quotes",
    "int_type": "It must be a whole number",
    "float_type": "It must be a number",
    "tuple_type": "It must be a list",
    "mapping_type": "It must be a table",
    "dict_type": "It must be a table",
    "string_pattern_mismatch": "It must be a number or a range such as 2-4",
    "dataclass_type": "It must be a table",
}
