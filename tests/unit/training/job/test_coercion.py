from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NewType

import pytest
from typing_extensions import TypeAliasType, TypeVar

from forebay.errors import BadJob
from forebay.training.job.coercion import coerce, name_of_type


class Color(enum.Enum):
    RED = "red"


T = TypeVar("T")
# Python 3.12 writes `type Sizes = list[int]`.
Sizes = TypeAliasType("Sizes", list[int])
Several = TypeAliasType("Several", tuple[T, ...], type_params=(T,))
Rate = NewType("Rate", float)


class Opaque:
    """A type that no text can stand for."""


@pytest.mark.parametrize(
    ("annotation", "word", "value"),
    [
        (int, "2", 2),
        (int, "-7", -7),
        (float, "1e-3", 1e-3),
        (float, "2", 2.0),
        (bool, "true", True),
        (bool, "no", False),
        (str, "3", "3"),
        (str, "none", "none"),
        (str, "[1]", "[1]"),
        (str | None, "none", None),
        (str | None, "clicked", "clicked"),
        (int | None, "None", None),
        (int | None, "4", 4),
        (Path, "a/b", Path("a/b")),
        (Literal["adam", "sgd"], "sgd", "sgd"),
        (Color, "red", Color.RED),
        (list[int], "64,32", [64, 32]),
        (list[int], "[64, 32]", [64, 32]),
        (list[int], "64", [64]),
        (list[int], "", []),
        (tuple[int, ...], "64, 32", (64, 32)),
        (tuple[str, ...], "a,b", ("a", "b")),
        (Sequence[float], "0.5", [0.5]),
        (list[str] | None, "none", None),
        (list[str] | None, "a,b", ["a", "b"]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Any, "x", "x"),
        (Sizes, "64,32", [64, 32]),
        (Sizes | None, "none", None),
        (TypeAliasType("Maybe", Sizes | None), "None", None),
        (TypeAliasType("Maybe", Sizes | None), "64,32", [64, 32]),
        (Several[int], "64,32", (64, 32)),
        (TypeAliasType("Name", str), "[1]", "[1]"),
        (NewType("Names", list[str]), "a,b", ["a", "b"]),
        (Rate, "0.5", 0.5),
    ],
)
def test_words_become_what_the_annotation_says(annotation: Any, word: str, value: object) -> None:
    found = coerce("option", word, annotation)
    assert found == value
    assert type(found) is type(value)


def test_values_that_are_no_words() -> None:
    assert coerce("workers", 2, int) == 2
    assert coerce("hidden", (1, 2), tuple[int, ...]) == (1, 2)
    opaque = Opaque()
    assert coerce("thing", opaque, Opaque) is opaque


@pytest.mark.parametrize(
    ("annotation", "word", "message"),
    [
        (int, "two", r"workers=two is not of type int \(.*integer"),
        (int, "1.5", r"workers=1.5 is not of type int"),
        (bool, "maybe", r"workers=maybe is not of type bool"),
        (Literal["adam", "sgd"], "rmsprop", r"'adam' or 'sgd'"),
        (list[int], "1,b", r"workers=1,b is not of type list\[int\]"),
        (list[int], "[1", r"workers=\[1 is not of type list\[int\]"),
        (Opaque, "x", r"workers is a Opaque, which cannot be written as text"),
    ],
)
def test_words_that_do_not_fit(annotation: Any, word: str, message: str) -> None:
    with pytest.raises(BadJob, match=message):
        coerce("workers", word, annotation)


def test_types_are_named_as_in_source() -> None:
    names = [name_of_type(kind) for kind in (int, str | None, tuple[int, ...], Path)]
    assert names == ["int", "str | None", "tuple[int, ...]", "Path"]


@pytest.mark.parametrize(
    ("annotation", "name"),
    [(Sizes, "list[int]"), (Sizes | None, "list[int] | None"), (Rate, "float"), (TypeAliasType("Any_", Rate), "float")],
)
def test_an_alias_is_shown_as_what_it_stands_for(annotation: Any, name: str) -> None:
    assert name_of_type(annotation) == name
