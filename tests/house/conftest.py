"""Where the source is, and how to read it without importing it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def sources(repository: Path) -> Mapping[str, ast.Module]:
    """Syntax tree per file of the package, by path relative to `platform/forebay`; nothing is imported."""
    package = repository / "platform" / "forebay"
    return {str(path.relative_to(package)): ast.parse(path.read_bytes()) for path in sorted(package.rglob("*.py"))}
