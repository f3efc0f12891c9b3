"""Check of decoded values against the types that their classes declare."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import chain, repeat
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def require_types(value: T) -> T:
    """Return `value` if all its fields have their declared types.

    Of a dataclass or a named tuple, and of those within it. Any other value passes. An integer is a float, too. Raises
    `TypeError`, which names the field, and `ValueError` for a tuple of another length.
    """
    kind: Any = type(value)
    for name, declared in _fields(kind).items():
        found = getattr(value, name)
        if not _fits(found, declared):
            raise TypeError(f"{name}={found!r:.60} is not what it should be")
    return value


def require_facts(facts: Mapping[str, Any], kind: type, names: Iterable[str]) -> None:
    """Require that `facts` fit the fields `names` of `kind`.

    Raises `TypeError`, and `KeyError` for one that is missing and has no default.
    """
    for name in names:
        if name not in facts and name in _defaults(kind):
            continue
        if not _fits(facts[name], _fields(kind)[name]):
            raise TypeError(f"{name}={facts[name]!r:.60} is not what it should be")


@cache
def _defaults(kind: Any) -> frozenset[str]:
    every = fields(kind)
    return frozenset(each.name for each in every if (each.default, each.default_factory) != (MISSING, MISSING))


@cache
def _fields(kind: Any) -> dict[str, Any]:
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else getattr(kind, "_fields", ())
    declared = get_type_hints(kind) if names else {}
    return {name: declared[name] for name in names}


def _fits(value: Any, declared: Any) -> bool:
    kind, parts = get_origin(declared), get_args(declared)
    if kind in (Union, types.UnionType):
        return any(_fits(value, each) for each in parts)
    if kind is Literal:
        return value in parts
    if kind is None:
        return declared in (Any, object) or _is_instance(value, declared)
    return isinstance(value, kind) and all(_fits(each, part) for each, part in _items(value, kind, parts))


def _is_instance(value: Any, declared: type) -> bool:
    if declared is float:
        return isinstance(value, int | float)
    return isinstance(value, declared) and require_types(value) is value


def _items(value: Any, kind: type, parts: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """Items of a container, each with its declared type."""
    if issubclass(kind, Mapping):
        return chain(zip(value.keys(), repeat(parts[0])), zip(value.values(), repeat(parts[1])))
    if kind is tuple and parts[-1] is not Ellipsis:
        return zip(value, parts, strict=True)  # raises ValueError
    return zip(value, repeat(parts[0]))
