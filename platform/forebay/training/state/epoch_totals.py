"""Time, rows and metrics of the current epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from forebay.events import EpochEnded
from forebay.runtime.metrics import Counters
from forebay.training.state.metric import Metric, Scalar, WeightedMean, weighted

TRAINER_METRICS = ("wait_s", "copy_s", "batches", "rows")
"""Counters of a held-out loader that must not count as training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFacts:
    """Totals of a part of an epoch, as plain numbers.

    Ranks exchange them and checkpoints save them.

    `rows` are global rows. `spent` holds seconds. A metric is kept as its sum and its number of values in the steps of
    a rank, or in the rows of all ranks for a `WeightedMean`: the next world may have another number of ranks.
    """

    rows: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)
    metric_sums: Mapping[str, float] = field(default_factory=dict)
    metric_times: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)

    def for_rank(self, rank: int) -> EpochFacts:
        """Return the totals that `rank` resumes from.

        At any world size.

        Only rank 0 takes over sums over ranks.
        """
        return self if rank == 0 else replace(self, counters={})

    def epoch_ended(self, *, epoch: int, step: int, dropped_rows: int) -> EpochEnded:
        """Return the results of a full epoch."""
        return EpochEnded(
            epoch=epoch,
            step=step,
            metrics={
                name: total / times for name, total in self.metric_sums.items() if (times := self.metric_times[name])
            },
            rows=self.rows,
            seconds=self.spent["seconds"],
            wait_s=self.spent["wait_s"],
            eval_s=self.spent["eval_s"],
            checkpoint_s=self.spent["checkpoint_s"],
            counters=dict(self.counters),
            dropped_rows=dropped_rows,
        )


def over_ranks(ranks: Sequence[EpochFacts]) -> EpochFacts:
    """Combine the totals of all ranks.

    Counters are summed; metrics and times are averaged.

    Time in checkpoints is the slowest rank's, which writes. The others wait for it in their next step.
    """
    spent = _mean([rank.spent for rank in ranks])
    return EpochFacts(
        rows=ranks[0].rows,
        spent=spent | {"checkpoint_s": max(rank.spent["checkpoint_s"] for rank in ranks)},
        metric_sums=_mean([rank.metric_sums for rank in ranks]),
        metric_times=_mean([rank.metric_times for rank in ranks]),
        counters=_sum([rank.counters for rank in ranks]),
    )


class EpochTotals:
    """This rank's totals of the current epoch.

    They continue from `start`.

    Metrics may be tensors. They are summed on their device. Only `facts` reads them, which waits for the device.
    """

    def __init__(self, train: Counters, held_out: Counters, start: EpochFacts, world_size: int) -> None:
        self._train, self._held_out, self._world_size = train, held_out, world_size
        self._before = train.as_dict(), held_out.as_dict()
        self._start = start
        self._rows = start.rows
        self._timed: set[str] = set()
        self._spent = {"seconds": 0.0, "wait_s": 0.0, "eval_s": 0.0, "checkpoint_s": 0.0} | dict(start.spent)
        self._sums: dict[str, Scalar] = dict(start.metric_sums)
        self._times: dict[str, Scalar] = dict(start.metric_times)
        self.start_clock()

    def start_clock(self) -> None:
        """Start the epoch's clock.

        Building a model is not part of the epoch.
        """
        self._began = time.perf_counter()

    def add_rows(self, rows: int) -> None:
        """Count trained global rows."""
        self._rows += rows

    def add_time(self, what: str, seconds: float) -> None:
        """Add seconds to `eval_s` or `checkpoint_s`."""
        self._spent[what] += seconds

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time of a block, as `add_time` does.

        A block within another one counts once.
        """
        if what in self._timed:
            yield
            return
        self._timed.add(what)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._timed.discard(what)
            self.add_time(what, time.perf_counter() - began)

    def add_metrics(self, metrics: Mapping[str, Metric], *, are_of_all_ranks: bool = False) -> None:
        """Add metrics of one step, of this rank or of all of them.

        Raises `InvalidOption` for a metric that is not a single number.
        """
        for name, value in metrics.items():
            total, weight = weighted(name, value)
            if isinstance(value, WeightedMean) and not are_of_all_ranks:
                # `over_ranks` averages: so the mean of these is the sum over ranks.
                total, weight = total * self._world_size, weight * self._world_size
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._times[name] = self._times.get(name, 0.0) + weight

    def facts(self) -> EpochFacts:
        """Return the totals up to now."""
        train, held_out = self._train.since(self._before[0]), self._held_out.since(self._before[1])
        spent = dict(self._spent)
        spent["seconds"] += time.perf_counter() - self._began
        spent["wait_s"] += train.get("wait_s", 0.0)
        return EpochFacts(
            rows=self._rows,
            spent=spent,
            metric_sums={name: float(total) for name, total in self._sums.items()},
            metric_times={name: float(weight) for name, weight in self._times.items()},
            counters=_sum([self._start.counters, counted_together(train, held_out)]),
        )


def counted_together(train: Mapping[str, float], held_out: Mapping[str, float]) -> dict[str, float]:
    """Combine the counters of both loaders of a rank.

    `TRAINER_METRICS` count the training data only.
    """
    blocks = {name: amount for name, amount in held_out.items() if name not in TRAINER_METRICS}
    return _sum([train, blocks])


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name: None for part in parts for name in part}
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def _mean(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: total / len(parts) for name, total in _sum(parts).items()}
