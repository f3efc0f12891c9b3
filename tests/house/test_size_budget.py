"""The budget of docs/style.md, as far as it can be counted."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

MAX_FILE_LINES = 400
MEDIAN_FILE_LINES = 130
P90_FUNCTION_LINES = 30
MAX_ARGUMENTS = 6
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core"}
FORBIDDEN_ENDINGS = ("Manager", "Handler", "Helper", "Processor")
# The public surface names each of these, and all are keyword-only.
MAY_TAKE_MORE = {"loader/loader.py:__init__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@pytest.fixture(scope="module")
def line_counts(repository: Path) -> dict[str, int]:
    roots = (repository / "platform" / "forebay", repository / "jobs")
    paths = [path for root in roots for path in root.rglob("*.py")]
    return {str(path.relative_to(repository)): len(path.read_text().splitlines()) for path in paths}


def _functions(sources: Mapping[str, ast.Module]) -> Iterator[tuple[str, Function]]:
    for file, tree in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield file, node


def _num_arguments(function: Function) -> int:
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _is_command(function: Function) -> bool:
    """A command's signature is its options, each one annotated with its help."""
    return any(argument.annotation and "typer." in ast.unparse(argument.annotation) for argument in function.args.args)


def test_files_stop_at_400_lines(line_counts: dict[str, int]) -> None:
    assert {file: lines for file, lines in line_counts.items() if lines > MAX_FILE_LINES} == {}
    assert statistics.median(lines for lines in line_counts.values() if lines) <= MEDIAN_FILE_LINES


def test_functions_are_short(sources: Mapping[str, ast.Module]) -> None:
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for _, node in _functions(sources)]
    assert statistics.quantiles(lengths, n=10)[-1] <= P90_FUNCTION_LINES


def test_no_function_takes_more_than_six_arguments(sources: Mapping[str, ast.Module]) -> None:
    greedy = {
        f"{file}:{node.name}"
        for file, node in _functions(sources)
        if _num_arguments(node) > MAX_ARGUMENTS and not _is_command(node)
    }
    assert greedy == MAY_TAKE_MORE


def test_names_say_what_is_inside(line_counts: dict[str, int]) -> None:
    parts = {file: {*Path(file).with_suffix("").parts} for file in line_counts}
    assert [file for file, names in parts.items() if names & FORBIDDEN_NAMES] == []


def test_classes_are_nouns_of_the_field(sources: Mapping[str, ast.Module]) -> None:
    names = [node.name for tree in sources.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(names) > 20
    assert [name for name in names if name.endswith(FORBIDDEN_ENDINGS)] == []
