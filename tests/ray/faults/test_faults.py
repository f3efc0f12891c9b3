"""One seed of every fault under Ray, for `make test`. `make soak` runs many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray.faults import cluster
from tests.soak.case import FAULTS, TERMS, Case, rng_of
from tests.soak.faults import load

load()
# Another fault here covers these too, or tests/soak/test_matrix.py without Ray. A stuck close is in
# tests/ray/data/cache/node/test_node.py, a peer that hangs or is lost in test_node_peers.py beside it.
VARIATIONS = {
    "ray-block-damaged",
    "ray-cache-actor-killed",
    "ray-cache-folder-deleted",
    "ray-close-while-stuck",
    "ray-object-store-full",
    "ray-peer-lost",
    "ray-quota-shrunk",
    "ray-storage-slow",
    "ray-transform-raises",
    "ray-two-trainers-race",
}


def marks(name: str) -> list[pytest.MarkDecorator]:
    variation = [pytest.mark.variation] if name in VARIATIONS else []
    return [pytest.mark.timeout(TERMS[name].deadline_s), *variation]


CASES = [
    pytest.param(Case(name, seed), id=f"{name}-{seed}", marks=marks(name))
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
