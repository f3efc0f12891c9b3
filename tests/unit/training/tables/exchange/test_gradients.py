"""Gradients of all tables travel together, and are summed as for each table alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.tables.many_tables import ManyRun, assert_bit_equal, reduce_apart, train_many

from forebay.training.collectives.collective import SingleProcessCollective

Ranks = Callable[..., list[Any]]


@pytest.mark.parametrize(
    ("size", "wire"),
    [(2, "float32"), (3, "float16"), (4, "float32"), pytest.param(4, "bfloat16", marks=pytest.mark.variation)],
)
def test_gradients_together_are_those_apart(importing_ranks: Ranks, size: int, wire: Any) -> None:
    run = ManyRun(tables=6, wire=wire)
    apart = importing_ranks(size, train_many, replace(run, reduce=reduce_apart))
    together = importing_ranks(size, train_many, run)
    for found, wanted in zip(together, apart, strict=True):
        assert_bit_equal(found, wanted)
        assert found.losses[0] != found.losses[-1]


@pytest.mark.parametrize("tables", [1, 3, 7])
def test_messages_of_gradients_do_not_grow_with_the_tables(importing_ranks: Ranks, tables: int) -> None:
    for found in importing_ranks(2, train_many, ManyRun(tables=tables)):
        assert found.update == [1, 1, 1, 1]


@pytest.mark.parametrize(("tables", "sums"), [(1, 0), (3, 1), (7, 1)])
def test_messages_of_dense_gradients_do_not_grow_with_the_tables(
    importing_ranks: Ranks, tables: int, sums: int
) -> None:
    # The third table is open, and all others but the second one are replicas.
    placements = dict.fromkeys((0, *range(3, tables)), "replicate") if sums else {}
    for found in importing_ranks(2, train_many, ManyRun(tables=tables, placements=placements)):
        # The norm of clipped gradients is an all-reduce of the collective, which is not counted here.
        assert found.sums == [sums] * 4


def test_one_process_sends_nothing() -> None:
    found = train_many(SingleProcessCollective(), ManyRun(tables=5))
    assert (set(found.forward), set(found.update)) == ({0}, {0})
