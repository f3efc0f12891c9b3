"""Win rate of answers over others: a judge sees each pair in both orders."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from forebay.errors import ScoringFailed
from forebay.llm.score.engines.engine import EngineSpec
from forebay.llm.score.evaluation.interval import wilson_interval
from forebay.llm.score.evaluation.pairs import judged_pairs, write_pairs
from forebay.llm.score.evaluation.win_rate_request import WinRateRequest
from forebay.llm.score.pool.counters import ProgressListener
from forebay.llm.score.scoring import score_rows
from forebay.llm.score.tasks import VERDICT

PairOutcome = Literal["win", "loss", "tie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """Wins, losses and ties of the pairs that were judged in both orders. A contradiction is a tie.

    Attributes:
        wins, losses, ties: Pairs.
        invalid: Pairs without a valid verdict in one of the orders.
        unanswered: Rows that one of the two folders does not answer.
    """

    wins: int
    losses: int
    ties: int
    invalid: int = 0
    unanswered: int = 0

    @property
    def pairs(self) -> int:
        """Pairs that count."""
        return self.wins + self.losses + self.ties

    @property
    def share(self) -> float:
        """Win rate, with a tie as half a win."""
        return (self.wins + self.ties / 2) / max(self.pairs, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the win rate, by Wilson."""
        return wilson_interval(self.wins + self.ties / 2, self.pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRates:
    """Win rate over all pairs, and by the values of a column."""

    total: WinRate
    by: Mapping[str, WinRate] = field(default_factory=dict)


def measure_win_rate(
    request: WinRateRequest, *, engine: EngineSpec | None = None, listener: ProgressListener | None = None
) -> WinRates:
    """Ask the judge about each pair in both orders. A run that was stopped goes on.

    Raises as `score_rows`, `InvalidOption` for answers to other data, `ScoringFailed` without a pair to judge.
    """
    pairs, unanswered = judged_pairs(request)
    if not pairs.num_rows:
        raise ScoringFailed(f"no row has an answer in both {request.answers} and {request.against}.")
    write_pairs(pairs, request.pairs)
    verdicts = score_rows(request.verdicts_request(), engine=engine, listener=listener).read()
    assert verdicts["pair"].to_pylist() == pairs["pair"].to_pylist(), "verdicts are in the order of the pairs"
    winners = [None if text is None else str(json.loads(text)["winner"]) for text in verdicts[VERDICT].to_pylist()]
    outcomes = [outcome_of_pair(winners[at], winners[at + 1]) for at in range(0, len(winners), 2)]
    groups: list[str] = pairs["by"].to_pylist()[::2]
    by = {
        group: _counted([outcome for outcome, other in zip(outcomes, groups, strict=True) if other == group], 0)
        for group in (sorted(set(groups)) if request.by else ())
    }
    return WinRates(total=_counted(outcomes, unanswered), by=by)


def outcome_of_pair(first: str | None, second: str | None) -> PairOutcome | None:
    """Outcome of the answers that are A in the first order, and B in the second. None: a verdict is missing.

    >>> outcome_of_pair("A", "B"), outcome_of_pair("B", "A"), outcome_of_pair("A", "A"), outcome_of_pair("A", None)
    ('win', 'loss', 'tie', None)
    """
    if first is None or second is None:
        return None
    known: dict[tuple[str, str], PairOutcome] = {("A", "B"): "win", ("B", "A"): "loss"}
    return known.get((first, second), "tie")


def _counted(outcomes: Sequence[PairOutcome | None], unanswered: int) -> WinRate:
    counts = Counter(outcomes)
    return WinRate(
        wins=counts["win"], losses=counts["loss"], ties=counts["tie"], invalid=counts[None], unanswered=unanswered
    )
