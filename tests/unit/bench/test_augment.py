from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

Bench = Callable[[str], ModuleType]


def test_numbers_and_waits_are_measured(bench: Bench, tmp_path: Path) -> None:
    measured = bench("augment")
    found = measured.numbers(1)
    assert found.keys() == measured.KINDS.keys()
    assert all(0 < ours < 1e6 and 0 < theirs < 1e6 for ours, theirs in found.values())
    (step_ms, *waits), (_, _, augment_ms) = measured.waits(tmp_path, (0.1,), 3, 1)
    assert step_ms == 0.1 and min(waits) >= 0 and augment_ms > 0
