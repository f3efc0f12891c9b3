"""What an epoch has cost and given so far, on one rank and over all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from forebay.events import EpochEnded
from forebay.metrics import Counters
from forebay.train.metric import Metric, scalar

TRAINER_METRICS = ("wait_s", "copy_s", "batches", "rows")
"""Counters of a held-out loader that must not be taken for those of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFacts:
    """Part of an epoch in plain numbers: what ranks exchange at a commit, and what the commit carries.

    `rows` are global rows; `spent` holds seconds; a metric is kept as its sum and how often it was given.
    """

    rows: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)
    metric_sums: Mapping[str, float] = field(default_factory=dict)
    metric_times: Mapping[str, float] = field(default_factory=dict)
    tally: Mapping[str, float] = field(default_factory=dict)

    def for_rank(self, rank: int) -> EpochFacts:
        """What `rank` goes on from after a resume, in a world of any size: only rank 0 takes over sums over ranks."""
        return self if rank == 0 else replace(self, tally={})

    def epoch_ended(self, *, epoch: int, step: int, dropped_rows: int) -> EpochEnded:
        """The account of a full epoch."""
        return EpochEnded(
            epoch=epoch,
            step=step,
            metrics={name: total / self.metric_times[name] for name, total in self.metric_sums.items()},
            rows=self.rows,
            seconds=self.spent["seconds"],
            wait_s=self.spent["wait_s"],
            eval_s=self.spent["eval_s"],
            checkpoint_s=self.spent["checkpoint_s"],
            tally=dict(self.tally),
            dropped_rows=dropped_rows,
        )


def over_ranks(ranks: Sequence[EpochFacts]) -> EpochFacts:
    """One account of all ranks: tallies are summed, metrics and times averaged.

    Time in commits is that of the slowest rank, the one that writes: the others wait for it within their next step.
    """
    spent = _mean([rank.spent for rank in ranks])
    return EpochFacts(
        rows=ranks[0].rows,
        spent=spent | {"checkpoint_s": max(rank.spent["checkpoint_s"] for rank in ranks)},
        metric_sums=_mean([rank.metric_sums for rank in ranks]),
        metric_times=_mean([rank.metric_times for rank in ranks]),
        tally=_sum([rank.tally for rank in ranks]),
    )


class EpochTotals:
    """Keeps the books of the current epoch on this rank, going on from `start`.

    Metrics may be tensors: they are added up on their device, and read (which waits for it) only in `facts`.
    """

    def __init__(self, train: Counters, held_out: Counters, start: EpochFacts) -> None:
        self._train, self._held_out = train, held_out
        self._before = train.as_dict(), held_out.as_dict()
        self._start = start
        self._rows = start.rows
        self._spent = {"seconds": 0.0, "wait_s": 0.0, "eval_s": 0.0, "checkpoint_s": 0.0} | dict(start.spent)
        self._sums: dict[str, Metric] = dict(start.metric_sums)
        self._times = dict(start.metric_times)
        self.start_clock()

    def start_clock(self) -> None:
        """The epoch's seconds count from now: building a model is no part of it."""
        self._began = time.perf_counter()

    def train(self, rows: int) -> None:
        """Count global rows that were trained on."""
        self._rows += rows

    def spend(self, what: str, seconds: float) -> None:
        """Book seconds as `eval_s` or `checkpoint_s`."""
        self._spent[what] += seconds

    def give(self, metrics: Mapping[str, Metric]) -> None:
        """Add metrics of one step. Raises `InvalidOption` for one that is no single number."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + scalar(name, value)
            self._times[name] = self._times.get(name, 0.0) + 1.0

    def facts(self) -> EpochFacts:
        """The account up to now."""
        train, held_out = self._train.since(self._before[0]), self._held_out.since(self._before[1])
        spent = dict(self._spent)
        spent["seconds"] += time.perf_counter() - self._began
        spent["wait_s"] += train.get("wait_s", 0.0)
        return EpochFacts(
            rows=self._rows,
            spent=spent,
            metric_sums={name: float(total) for name, total in self._sums.items()},
            metric_times=dict(self._times),
            tally=_sum([self._start.tally, counted_together(train, held_out)]),
        )


def counted_together(train: Mapping[str, float], held_out: Mapping[str, float]) -> dict[str, float]:
    """Counters of both loaders of a rank; what says how training goes is of the training data alone."""
    blocks = {name: amount for name, amount in held_out.items() if name not in TRAINER_METRICS}
    return _sum([train, blocks])


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name: None for part in parts for name in part}
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def _mean(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: total / len(parts) for name, total in _sum(parts).items()}
