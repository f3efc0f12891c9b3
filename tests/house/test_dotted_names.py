"""Dotted names in strings, docs and settings: no linter follows them, so a rename would break them silently."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from tests.house.figures import nodes_of
from tests.house.prose import files_below

DOTTED = re.compile(r"(?<![\w./-])forebay(?:\.[A-Za-z_]\w*)+")
PAGES = ("README.md", "docs", "notebooks", "deploy", "pyproject.toml", "Makefile")
# Names of ours in other systems: Horovod's operations, trackers' tags, Grafana's board.
NOT_PYTHON = frozenset(
    {
        *(
            "forebay.combine",
            "forebay.all_reduce",
            "forebay.broadcast_object",
            "forebay.broadcast_object.size",
        ),
        *(f"forebay.tensors.{name}" for name in ("all_gather", "all_reduce", "all_to_all", "broadcast")),
        *("forebay.epochs", "forebay.model", "forebay.rolled_back", "forebay.run", "forebay.warned"),
        *("forebay.group", "forebay.lost_workers", "forebay.reason", "forebay.state"),
        "forebay.dev",  # labels and annotations of Kubernetes
        "forebay.json",
        "forebay.job_file",  # a fact of a command's context
    }
)

Trees = Mapping[str, ast.Module]


@pytest.fixture(scope="module")
def modules(sources: Trees) -> Trees:
    """Syntax tree per module of the package, by its dotted name."""
    parts = {file: ("forebay", *Path(file).with_suffix("").parts) for file in sources}
    return {".".join(parts[file]).removesuffix(".__init__"): tree for file, tree in sources.items()}


def test_every_dotted_name_resolves(repository: Path, trees: Trees, modules: Trees) -> None:
    found = [*_in_strings(trees), *_in_pages(repository)]
    assert len(found) > 100
    assert {
        f"{place}: {name}" for place, name in found if name not in NOT_PYTHON and not _resolves(name, modules)
    } == set()


@pytest.mark.parametrize("name", ["forebay.data.cache", "forebay.scan", "forebay.errors.ForebayError.facts"])
def test_the_check_lets_pass(modules: Trees, name: str) -> None:
    assert _resolves(name, modules)


@pytest.mark.parametrize(
    "name", ["forebay.PetaLoader", "forebay.cash", "forebay.errors.ForebayError.fax", "forebay.cli.io"]
)
def test_the_check_sees(modules: Trees, name: str) -> None:
    assert not _resolves(name, modules)


def _in_strings(trees: Trees) -> Iterator[tuple[str, str]]:
    for file, tree in trees.items():
        for node in nodes_of(tree) if Path(file).name != Path(__file__).name else ():
            match node:
                case ast.Constant(value=str(text)):
                    yield from ((f"{file}:{node.lineno}", name) for name in DOTTED.findall(text))


def _in_pages(repository: Path) -> Iterator[tuple[str, str]]:
    for path in files_below(repository, PAGES, (".md", ".ipynb", ".toml", ".json", ".yaml", ".yml", "")):
        if path.is_file():
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                yield from ((f"{path.relative_to(repository)}:{number}", name) for name in DOTTED.findall(line))


def _resolves(name: str, modules: Trees) -> bool:
    """Whether it is a module, an attribute of a module, or a member of a class of the package."""
    owner, members = name, list[str]()
    while owner not in modules:
        owner, _, last = owner.rpartition(".")
        members.insert(0, last)
    scope: ast.AST | None = modules[owner]
    for member in members:
        if scope is None:
            return True  # an attribute of a value: its type says more than the syntax
        defined = _members(scope)
        if member not in defined:
            return False
        scope = defined[member]
    return True


@cache
def _members(scope: ast.AST) -> Mapping[str, ast.AST | None]:
    return dict(_defined(scope))


def _defined(scope: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Names that a module or class defines. A class comes with itself as the scope of its members."""
    for node in getattr(scope, "body", ()):
        match node:
            case ast.ClassDef(name=name):
                yield name, node
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, None
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                yield from ((alias.asname or alias.name, None) for alias in names)
            case ast.If() | ast.Try() | ast.With():
                yield from _defined(node)
            case _:
                yield from _stored(node)
        if isinstance(scope, ast.ClassDef):
            yield from _stored(node)


def _stored(statement: ast.AST) -> Iterator[tuple[str, None]]:
    """Targets of an assignment: variables, and members of `self`."""
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, None
