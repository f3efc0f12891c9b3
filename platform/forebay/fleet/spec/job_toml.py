"""Job files in TOML: parsing, and lines of errors."""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from forebay.errors import InvalidJobSpec
from forebay.fleet.spec.fields import dotted, fault, first_fault
from forebay.fleet.spec.job_spec import MOST_MOUNTS, MOST_TASKS, JobSpec, check_count
from forebay.runtime.formatting import did_you_mean

_MOST_BYTES = 1 << 20
_HEADER = re.compile(r"\s*\[(\[?)\s*([^\]]+?)\s*\]")
_SPEC: TypeAdapter[JobSpec] = TypeAdapter(JobSpec)


def load_job_spec(path: str | Path) -> JobSpec:
    """Load a JobSpec from a TOML file.

    Raises `InvalidJobSpec` with the line of the first fault.
    """
    try:
        text = _content(Path(path))
    except OSError as error:
        raise InvalidJobSpec(
            f"the job file {path} cannot be read ({error.strerror}). Give the path of a TOML file.", path=()
        ) from error
    return parse_job_spec(text, str(path))


def parse_job_spec(text: str, file: str = "job.toml") -> JobSpec:
    """Parse a JobSpec from TOML.

    Raises `InvalidJobSpec`: `file` and the line are part of its message.
    """
    try:
        facts = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # beside TOMLDecodeError: a number of 5,000 digits, 1,000 brackets
        raise InvalidJobSpec(f"{file} is not TOML: {error}.", fault=str(error), path=()) from None
    try:
        refuse_unknown_keys(JobSpec, facts)
        return spec_of(facts)
    except InvalidJobSpec as error:
        path = typing.cast(tuple[str | int, ...], error.facts.get("path", ()))
        line = line_of(text, path)
        raise InvalidJobSpec(f"{file}, line {line}: {error}", **{**error.facts, "line": line, "file": file}) from None


def spec_of(facts: Mapping[str, Any]) -> JobSpec:
    """Make a JobSpec from decoded TOML or JSON.

    Raises `InvalidJobSpec`.
    """
    # Before each entry is checked, which takes a tenth of a millisecond.
    if isinstance(tasks := facts.get("task"), Sequence):
        check_count(tasks, MOST_TASKS, "task")
    if isinstance(launch := facts.get("launch"), Mapping) and isinstance(mounts := launch.get("mounts"), Sequence):
        check_count(mounts, MOST_MOUNTS, "launch", "mounts")
    refuse_unknown_keys(JobSpec, facts)
    try:
        return _SPEC.validate_python(facts)
    except ValidationError as error:
        raise first_fault(error) from None  # its text repeats the value, which may be a secret


def job_schema() -> dict[str, Any]:
    """JSON Schema of job files, for the completion of editors."""
    schema = _SPEC.json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Forebay job"}


def refuse_unknown_keys(kind: type, facts: object, path: tuple[str | int, ...] = ()) -> None:
    """Raise `InvalidJobSpec` for a key without a field.

    The error names the nearest field of the dataclass `kind`.
    """
    if not isinstance(facts, Mapping):
        return
    hints = _hints(kind)
    for name, value in facts.items():
        if name not in hints:
            raise _unknown_key(name, sorted(hints), path)
        _refuse_inside(hints[name], value, (*path, name))


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    # They are evaluated for a millisecond, and a page of jobs reads thousands of specifications.
    return typing.get_type_hints(kind)


def line_of(text: str, path: Sequence[str | int]) -> int:
    """Return the line of a field, or its table.

    Found by its text, as TOML parsers give none.
    """
    table: tuple[str | int, ...] = ()
    counts: dict[str, int] = {}
    best, best_depth = 1, 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _table_path(header[2], is_array=bool(header[1]), counts=counts)
            found: tuple[str | int, ...] = table
        elif key := re.match(r"""\s*["']?([\w.-]+)["']?\s*=""", line):
            found = (*table, *key[1].split("."))
        else:
            continue
        depth = _depth(path, found)
        if depth > best_depth and found == tuple(path[: len(found)]):
            best, best_depth = number, depth
    return best


def _depth(path: Sequence[str | int], found: Sequence[str | int]) -> int:
    """Number of leading parts that two paths have in common."""
    return next((i for i, (a, b) in enumerate(zip(path, found, strict=False)) if a != b), min(len(path), len(found)))


def _table_path(name: str, *, is_array: bool, counts: dict[str, int]) -> tuple[str | int, ...]:
    parts: tuple[str | int, ...] = ()
    names = [part.strip("\"' ") for part in name.split(".")]
    for number, part in enumerate(names):
        table = dotted((*parts, part))
        if is_array and number == len(names) - 1:
            counts[table] = counts.get(table, -1) + 1
        parts = (*parts, part, counts[table]) if table in counts else (*parts, part)
    return parts


def _content(path: Path) -> str:
    if path.stat().st_size > _MOST_BYTES:
        raise fault(f"{path} has more than 1 MiB. A job file is a short text.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise fault(f"{path} is not a UTF-8 text ({error.reason}).") from error


def _unknown_key(name: str, known: Sequence[str], path: tuple[str | int, ...]) -> InvalidJobSpec:
    hint = did_you_mean(name, known, cutoff=0.5) or f" Known are {', '.join(known)}."
    return fault(f"this key is unknown.{hint}", *path, name)


def _refuse_inside(hint: Any, value: object, path: tuple[str | int, ...]) -> None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        refuse_unknown_keys(hint, value, path)
        return
    inner = typing.get_args(hint)
    match value:
        case list() | tuple() if typing.get_origin(hint) is tuple:
            for number, each in enumerate(value):
                _refuse_inside(inner[0], each, (*path, number))
        case Mapping() if typing.get_origin(hint) is Mapping:
            for name, each in value.items():
                _refuse_inside(inner[1], each, (*path, name))
        case _ if typing.get_origin(hint) is not tuple:
            for part in inner:
                _refuse_inside(part, value, path)
