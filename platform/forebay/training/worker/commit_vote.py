"""Values that the ranks exchange at a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay.events import Request
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.monitors.monitor_set import gravest
from forebay.training.monitors.rows_at_fault import rows_text
from forebay.training.state.data_progress import DataProgress
from forebay.training.state.epoch_totals import EpochFacts, over_ranks
from forebay.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVote:
    """Vote of one rank at a checkpoint.

    It is sent pickled, so it is kept small.

    `rng` holds the states of its random generators that have changed since its last vote, as `rng.light` makes them.
    `measured` is for the batch policy. Only rank 0's `request` count.
    """

    facts: EpochFacts
    rng: Mapping[str, Any]
    verdict: Verdict
    measured: tuple[float, ...]
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDecision:
    """Result of the exchange: the same on every rank.

    `at_fault` are the ranks whose rows the verdict is about.
    """

    facts: EpochFacts
    verdict: Verdict
    measured: Sequence[tuple[float, ...]]
    request: Request
    at_fault: tuple[World, ...]

    @classmethod
    def of(cls, votes: Sequence[CommitVote]) -> CommitDecision:
        """Combine the votes of all ranks, in order of ranks."""
        return cls(
            facts=over_ranks([vote.facts for vote in votes]),
            verdict=gravest([vote.verdict for vote in votes]),
            measured=[vote.measured for vote in votes],
            request=votes[0].request,
            at_fault=_at_fault([vote.verdict for vote in votes]),
        )

    def naming_rows(self, progress: DataProgress, *, run: str) -> CommitDecision:
        """Return a copy whose verdict names the step's rows.

        A pure function of the order, the same on every rank.
        """
        verdict = self.verdict
        if verdict.action is Action.GO_ON or verdict.rows == "none":
            return self
        spans = progress.spans_of(verdict.step)
        text = rows_text(verdict, spans, progress.data.plan, self.at_fault, run)
        return replace(self, verdict=replace(verdict, reason=f"{verdict.reason}{text}"))


def _at_fault(verdicts: Sequence[Verdict]) -> tuple[World, ...]:
    """Ranks whose own rows show the fault.

    All ranks, if none says so. Empty for a verdict without rows.
    """
    chosen = gravest(verdicts)
    if chosen.rows == "none":
        return ()
    own = [
        rank
        for rank, each in enumerate(verdicts)
        if each.rows == "own" and (each.action, each.step) == (chosen.action, chosen.step)
    ]
    return tuple(World(rank=rank, size=len(verdicts)) for rank in own or range(len(verdicts)))
