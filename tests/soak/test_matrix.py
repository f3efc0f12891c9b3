"""A short cut through the fault matrix. `make soak` runs all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.soak.case import FAULTS, TERMS, Case
from tests.soak.faults import load
from tests.soak.slots import CaseSlot

load(under_ray=False)
WITH_LAWS = ("spawn", "early-break", "read-error", "short-read", "throttled", "removed-object", "racing-threads")
"""Faults whose mechanisms have laws below tests/unit."""
CASES = [
    pytest.param(
        Case(name, seed), id=f"{name}-{seed}", marks=pytest.mark.variation if seed or name in WITH_LAWS else ()
    )
    for name in FAULTS
    for seed in range(TERMS[name].quick)
    if not TERMS[name].group
]


@pytest.fixture(scope="module")
def slot() -> Iterator[CaseSlot]:
    slot = CaseSlot(under_ray=False)
    yield slot
    slot.close()


@pytest.mark.parametrize("case", CASES)
def test_fault(slot: CaseSlot, case: Case) -> None:
    (result,) = slot.run([case])
    if result.kind == "skipped":
        pytest.skip(result.detail)
    assert result.kind in ("equal", "error"), f"{result.detail}\nAgain: {case.replay}"
