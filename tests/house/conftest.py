"""The source of the whole repository as syntax trees. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.house.figures import PACKAGE, trees_of

ROOTS = ("platform", "bench", "studies", "jobs", "scripts", "tests")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def trees(repository: Path) -> Mapping[str, ast.Module]:
    """Syntax tree per Python file of the repository, by path relative to it."""
    return trees_of(repository, *ROOTS)


@pytest.fixture(scope="session")
def sources(trees: Mapping[str, ast.Module]) -> Mapping[str, ast.Module]:
    """Syntax tree per file of the package, by path relative to `platform/forebay`."""
    package = f"{PACKAGE}/"
    return {file.removeprefix(package): tree for file, tree in trees.items() if file.startswith(package)}
