"""Decoded values have the types that their classes declare, or are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import pytest

from forebay.runtime.declared_types import require_types


class TypedPoint(NamedTuple):
    at_s: float
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class TypedRecord:
    kind: ClassVar[int] = 1

    step: int = 0
    how: Literal["a", "b"] = "a"
    points: tuple[TypedPoint, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    before: TypedRecord | None = None


GOOD = [
    TypedRecord(),
    TypedRecord(
        step=3, points=(TypedPoint(1), TypedPoint(1.5, 2.0)), spans=((1, 2),), metrics={"loss": 1}, facts={"x": [None]}
    ),
    TypedRecord(before=TypedRecord(how="b")),
    "text",
    None,
]
BAD: list[dict[str, Any]] = [
    {"step": "3"},
    {"step": None},
    {"step": 2.5},
    {"step": [3]},
    {"how": "c"},
    {"how": []},
    {"points": 3},
    {"points": [TypedPoint(1.0)]},
    {"points": (1.0,)},
    {"points": (TypedPoint("1"),)},  # type: ignore[arg-type]
    {"spans": ((1, 2, 3),)},
    {"metrics": []},
    {"metrics": {"loss": "1"}},
    {"metrics": {1: 1.0}},
    {"facts": None},
    {"before": {}},
    {"before": TypedRecord(step="1")},  # type: ignore[arg-type]
]


@pytest.mark.parametrize("value", GOOD)
def test_values_as_declared_pass(value: object) -> None:
    assert require_types(value) is value


@pytest.mark.parametrize("given", BAD, ids=str)
def test_others_are_refused_by_the_name_of_the_field(given: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        require_types(TypedRecord(**given))
