"""Ranks that import what they run, so that their answers are of the classes of this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from forebay.training.collectives.collective import Collective


@pytest.fixture(scope="session")
def importing_ranks(ranks: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """`ranks(size, work, *args)` for functions of the package."""
    return lambda size, work, *args: ranks(size, run_named, work.__module__, work.__name__, *args)


def run_named(collective: Collective, module: str, name: str, *args: Any) -> Any:
    return getattr(importlib.import_module(module), name)(collective, *args)
