"""Verdicts of a judge: JSON checked against a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package

_REFERENCES, _VALUES = ("$ref", "$dynamicRef", "$recursiveRef"), ("const", "default", "enum", "examples")
_FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)


class InvalidVerdict(ValueError):
    """A text that is not a valid verdict."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check a JSON schema.

    Raises `InvalidOption` if it is invalid, if it refers to another file or address, which would be fetched, or if the
    package that checks it is missing.
    """
    if (outside := next(_outside(schema), None)) is not None:
        raise InvalidOption(
            f"schema= refers to {outside!r}, which is not in it, and nothing is fetched. Copy it into $defs, and refer "
            'to "#/$defs/NAME".',
            reference=outside,
        )
    checker, errors = _import_jsonschema()
    try:
        checker.check_schema(schema)
    except errors.SchemaError as error:
        raise InvalidOption(f"schema= is not a JSON schema: {error.message}.") from error


def _outside(part: object) -> Iterator[str]:
    """References of a schema that do not begin with #."""
    if isinstance(part, Mapping):
        for name, value in part.items():
            if name in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
                yield value
            if name not in _VALUES:
                yield from _outside(value)
    elif isinstance(part, list):
        for each in part:
            yield from _outside(each)


def verdict_of(text: str, schema: Mapping[str, Any]) -> Any:
    """Parse the JSON value in `text`.

    The whole text, or its first block between ``` marks. Raises `InvalidVerdict`.
    """
    fenced = _FENCED.search(text)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError) as error:
        raise InvalidVerdict(f"the answer is not JSON ({error}): {text[:80]!r}") from error
    checker, _ = _import_jsonschema()
    for found in checker(schema).iter_errors(value):
        at = "".join(f"[{each!r}]" for each in found.absolute_path) or "the verdict"
        raise InvalidVerdict(f"the answer does not fit the schema: {at}: {found.message}"[:300])
    return value


def read_schema(text: str) -> dict[str, Any]:
    """Schema of a JSON text. Raises `InvalidOption`."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise InvalidOption(
            f"schema= is not JSON ({error}): {text[:80]!r}. Give a JSON schema, or a file of one."
        ) from error
    if not isinstance(schema, dict):
        raise InvalidOption(f"schema= is a JSON {type(schema).__name__}, not an object.")
    return schema


def _import_jsonschema() -> tuple[Any, Any]:
    with extra_package("jsonschema", "A judge"):
        import jsonschema  # noqa: PLC0415 - an extra
    return jsonschema.Draft202012Validator, jsonschema.exceptions
