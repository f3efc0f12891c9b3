"""Functions, handlers and names of modules and classes."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.house.figures import broad_excepts, functions_of, lines_of

P90_FUNCTION_LINES = 30
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core"}
FORBIDDEN_ENDINGS = ("Manager", "Handler", "Helper", "Processor")
BROAD_EXCEPTS_PER_1000 = 0.47

Trees = Mapping[str, ast.Module]


@pytest.fixture(scope="module")
def line_counts(repository: Path) -> dict[str, int]:
    return lines_of(repository, "platform/forebay", "jobs", "bench", "studies")


def test_functions_are_short(sources: Trees) -> None:
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for _, node in functions_of(sources)]
    assert statistics.quantiles(lengths, n=10)[-1] <= P90_FUNCTION_LINES


def test_handlers_name_what_they_catch(sources: Trees, line_counts: dict[str, int]) -> None:
    broad = broad_excepts(sources)
    lines = sum(count for file, count in line_counts.items() if file.startswith("platform/"))
    assert 1000 * len(broad) / lines <= BROAD_EXCEPTS_PER_1000, broad


@pytest.mark.parametrize(
    ("handler", "is_broad"),
    [
        ("except Exception:", True),
        ("except (OSError, BaseException) as error:", True),
        ("except:", True),
        ("except builtins.Exception:", True),
        ("except (OSError, ValueError):", False),
    ],
)
def test_the_check_sees(handler: str, is_broad: bool) -> None:
    assert bool(broad_excepts({"a.py": ast.parse(f"try:\n    f()\n{handler}\n    g()")})) == is_broad


@pytest.mark.parametrize(
    ("call", "is_broad"),
    [
        ("outcome_of(call)", True),
        ("found = error_of(call)", True),
        ("with replaced_errors(ours): f()", True),
        ("with replaced_errors(ours, is_cause_shown=False): f()", True),
        ("with replaced_errors(ours, (OSError, ValueError)): f()", False),
    ],
)
def test_the_check_sees_calls_that_catch_everything(call: str, is_broad: bool) -> None:
    assert bool(broad_excepts({"a.py": ast.parse(call)})) == is_broad


def test_names_say_what_is_inside(line_counts: dict[str, int]) -> None:
    parts = {file: {*Path(file).with_suffix("").parts} for file in line_counts}
    assert [file for file, names in parts.items() if names & FORBIDDEN_NAMES] == []


def test_classes_are_nouns_of_the_field(sources: Trees) -> None:
    names = [node.name for tree in sources.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(names) > 20
    assert [name for name in names if name.endswith(FORBIDDEN_ENDINGS)] == []
