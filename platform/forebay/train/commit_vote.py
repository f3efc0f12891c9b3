"""What the ranks of a run tell each other at a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.events import Orders
from forebay.train.monitors.monitor import Verdict
from forebay.train.monitors.monitor_set import gravest
from forebay.train.state.epoch_totals import Facts, over_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One rank's part of the one exchange of a saved commit. It travels pickled, so it is kept small.

    `rng` are the states of its random generators, as `rng.light` makes them; `measured` is for the batch policy;
    `orders` counts on rank 0.
    """

    facts: Facts
    rng: Mapping[str, Any]
    verdict: Verdict
    measured: tuple[float, ...]
    orders: Orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Council:
    """What all ranks know after the exchange: the same on each of them."""

    facts: Facts
    rng: Sequence[Mapping[str, Any]]
    verdict: Verdict
    measured: Sequence[tuple[float, ...]]
    orders: Orders

    @classmethod
    def of(cls, words: Sequence[Word]) -> Council:
        """Of the words of all ranks, by rank."""
        return cls(
            facts=over_ranks([word.facts for word in words]),
            rng=[word.rng for word in words],
            verdict=gravest([word.verdict for word in words]),
            measured=[word.measured for word in words],
            orders=words[0].orders,
        )
