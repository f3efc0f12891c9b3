"""The scripts of the bench import each other by plain names, as scripts do: from their own folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "jobs" / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """`bench("data")` is the module `jobs/bench/data.py`; the names are free again after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCH)
    yield importlib.import_module
    own = [name for name, module in sys.modules.items() if str(BENCH) in (getattr(module, "__file__", None) or "")]
    for name in [*own, "systems"]:
        if name not in before:
            sys.modules.pop(name, None)
