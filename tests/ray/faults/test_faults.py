"""One seed of every fault under Ray, for `make test`; `make soak` runs many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray.faults import cluster
from tests.soak.case import FAULTS, TERMS, Case, rng_of
from tests.soak.faults import load

load()
CASES = [
    pytest.param(Case(name, seed), id=f"{name}-{seed}", marks=pytest.mark.timeout(terms.deadline_s))
    for name, terms in TERMS.items()
    if terms.group == "ray"
    for seed in range(terms.quick)
]


@pytest.fixture(scope="module", autouse=True)
def small_cluster() -> Iterator[None]:
    with cluster.running():
        yield


@pytest.mark.parametrize("case", CASES)
def test_fault(case: Case, tmp_path: Path) -> None:
    cluster.here().heal()
    outcome = FAULTS[case.fault](rng_of(case), tmp_path)
    assert outcome.kind in ("equal", "error"), outcome
