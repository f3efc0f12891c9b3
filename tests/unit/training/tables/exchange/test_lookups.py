"""Lookups that are made together share their messages, and find what lookups one after the other find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.tables.many_tables import (
    CountedCollective,
    ManyRun,
    ManyTables,
    assert_bit_equal,
    reduce_apart,
    train_many,
)

from forebay.errors import InvalidOption
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.tables.model_tables import ModelTables
from forebay.training.tables.optimizers import RowSGD
from forebay.training.tables.options import Tables
from forebay.training.tables.table import Lookup, look_up

Ranks = Callable[..., list[Any]]


@pytest.mark.parametrize(
    ("size", "wire"),
    [(2, "bfloat16"), (3, "float32"), (4, "float32"), pytest.param(4, "float16", marks=pytest.mark.variation)],
)
def test_lookups_together_are_those_apart(importing_ranks: Ranks, size: int, wire: Any) -> None:
    run = ManyRun(tables=6, wire=wire)
    apart = importing_ranks(size, train_many, replace(run, looks_up_together=False, reduce=reduce_apart))
    together = importing_ranks(size, train_many, run)
    for found, wanted in zip(together, apart, strict=True):
        assert_bit_equal(found, wanted)
        # Without the replicated table, and with the second lookup of the first one.
        assert wanted.forward == [2 * 6] * 4


@pytest.mark.parametrize("tables", [1, 3, 7])
def test_messages_of_lookups_do_not_grow_with_the_tables(importing_ranks: Ranks, tables: int) -> None:
    for found in importing_ranks(2, train_many, ManyRun(tables=tables)):
        assert found.forward == [2, 2, 2, 2]


def test_one_process_finds_the_same_alone() -> None:
    together, apart = (
        train_many(SingleProcessCollective(), ManyRun(tables=5, looks_up_together=how)) for how in (True, False)
    )
    assert_bit_equal(together, apart)


def exchanges_of_wrong_lookups(collective: Collective) -> tuple[str, int]:
    """Error of lookups of which the last one has wrong bags, and the number of messages before it."""
    counted, model = CountedCollective(collective), ManyTables(3, looks_up_together=True)
    ModelTables(model, Tables(RowSGD(lr=1.0), placement="rows"), counted, seed=3)
    ids = torch.arange(4)
    with pytest.raises(InvalidOption) as found:
        look_up(*(Lookup(each, ids) for each in model.tables), Lookup(model.tables[0], ids, ids, pool="sum"))
    exchanges = counted.tensors.count
    collective.combine(None, list)  # A rank that leaves at once may close connections that others are still making.
    return str(found.value), exchanges


def test_all_lookups_are_checked_before_the_first_message(ranks: Ranks) -> None:
    for text, exchanges in ranks(2, exchanges_of_wrong_lookups):
        assert "the bags have 6 ids, and 4 were given" in text
        assert exchanges == 0


def test_no_lookup_finds_nothing() -> None:
    assert look_up() == []
