"""What the ranks of a run tell each other at a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.events import Commands
from forebay.train.monitors.monitor import Verdict
from forebay.train.monitors.monitor_set import gravest
from forebay.train.state.epoch_totals import EpochFacts, over_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVote:
    """One rank's part of the one exchange of a saved commit. It travels pickled, so it is kept small.

    `rng` are the states of its random generators, as `rng.light` makes them; `measured` is for the batch policy;
    `orders` counts on rank 0.
    """

    facts: EpochFacts
    rng: Mapping[str, Any]
    verdict: Verdict
    measured: tuple[float, ...]
    orders: Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDecision:
    """What all ranks know after the exchange: the same on each of them."""

    facts: EpochFacts
    rng: Sequence[Mapping[str, Any]]
    verdict: Verdict
    measured: Sequence[tuple[float, ...]]
    orders: Commands

    @classmethod
    def of(cls, words: Sequence[CommitVote]) -> CommitDecision:
        """Of the words of all ranks, by rank."""
        return cls(
            facts=over_ranks([word.facts for word in words]),
            rng=[word.rng for word in words],
            verdict=gravest([word.verdict for word in words]),
            measured=[word.measured for word in words],
            orders=words[0].orders,
        )
