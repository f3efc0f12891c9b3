"""Values that the ranks exchange at a checkpoint."""

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
    """Contribution of one rank to the single exchange at a checkpoint. It is sent pickled, so it is kept small.

    `rng` holds the states of its random generators, as `rng.light` makes them. `measured` is for the batch policy. Only
    rank 0's `commands` count.
    """

    facts: EpochFacts
    rng: Mapping[str, Any]
    verdict: Verdict
    measured: tuple[float, ...]
    commands: Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDecision:
    """Result of the exchange: the same on every rank."""

    facts: EpochFacts
    rng: Sequence[Mapping[str, Any]]
    verdict: Verdict
    measured: Sequence[tuple[float, ...]]
    commands: Commands

    @classmethod
    def of(cls, votes: Sequence[CommitVote]) -> CommitDecision:
        """Combine the votes of all ranks, in order of ranks."""
        return cls(
            facts=over_ranks([vote.facts for vote in votes]),
            rng=[vote.rng for vote in votes],
            verdict=gravest([vote.verdict for vote in votes]),
            measured=[vote.measured for vote in votes],
            commands=votes[0].commands,
        )
