"""Totals of an epoch, over ranks and over worlds."""

from __future__ import annotations

import pytest

from forebay.runtime.metrics import Counters
from forebay.training.state.epoch_totals import EpochFacts, EpochTotals, over_ranks
from forebay.training.state.metric import Metric, WeightedMean


def continued(start: EpochFacts, ranks: list[list[Metric]], *, are_of_all_ranks: bool = False) -> EpochFacts:
    """Totals after a world whose ranks have these values."""
    found = []
    for rank, values in enumerate(ranks):
        totals = EpochTotals(Counters(), Counters(), start.for_rank(rank), len(ranks))
        for value in values:
            totals.add_metrics({"m": value}, are_of_all_ranks=are_of_all_ranks)
        found.append(totals.facts())
    return over_ranks(found)


def mean_of(facts: EpochFacts) -> float:
    return facts.epoch_ended(epoch=0, step=1, dropped_rows=0).metrics["m"]


def rows(loss: float, number: int) -> WeightedMean:
    return WeightedMean(total=loss * number, weight=number)


def test_every_row_counts_once_though_the_world_changes_within_an_epoch() -> None:
    half = continued(EpochFacts(), [[rows(1.0, 200)], [rows(1.0, 300)]])
    assert mean_of(half) == 1.0
    assert mean_of(continued(half, [[rows(2.0, 500)]])) == pytest.approx(1.5)
    assert mean_of(continued(half, [[rows(2.0, 250)], [rows(2.0, 250)], []])) == pytest.approx(1.5)


def test_every_step_counts_once_though_the_world_changes_within_an_epoch() -> None:
    half = continued(EpochFacts(), [[1.0, 1.0], [3.0, 3.0]])
    assert mean_of(continued(half, [[5.0, 5.0]])) == 3.5


def test_what_all_ranks_measured_together_counts_once() -> None:
    half = continued(EpochFacts(), [[rows(1.0, 500)]] * 2, are_of_all_ranks=True)
    assert mean_of(continued(half, [[rows(2.0, 500)]], are_of_all_ranks=True)) == pytest.approx(1.5)
