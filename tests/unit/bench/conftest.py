"""Modules of the benches, imported on request: some import Ray, which sets variables."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def bench() -> Callable[[str], ModuleType]:
    """`bench("loader.data")` is the module `bench.loader.data`."""
    return lambda name: importlib.import_module(f"bench.{name}")
