"""Training state of one rank, as checkpoints save it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from forebay.events import EpochEnded, Evaluated
from forebay.runtime.metrics import Counters
from forebay.training.batch_size.controller import BatchSizeController
from forebay.training.batch_size.policy import TrainPosition
from forebay.training.monitors.monitor import Verdict
from forebay.training.monitors.monitor_set import MonitorSet
from forebay.training.state.data_progress import DataProgress, PendingBatches
from forebay.training.state.epoch_totals import EpochFacts, EpochTotals
from forebay.training.state.evaluations import with_evaluation
from forebay.training.state.metric import Metric
from forebay.training.state.setup import LocalParts, TrainSetup
from forebay.training.state.snapshot import Snapshot
from forebay.training.state.stateful import Stateful, StatefulObjects
from forebay.training.worker.spec import TrainSpec


class TrainState:
    """Training state of one rank.

    Equal on every rank, except for the totals.

    It does not communicate with other ranks or storage. `restored` is the snapshot that was restored, until the next
    step.
    """

    def __init__(self, spec: TrainSpec, world_size: int) -> None:
        self.progress = DataProgress(spec.data)
        self.objects = StatefulObjects()
        self.monitors = MonitorSet(spec.monitors)
        self.batch_size = BatchSizeController(spec.batch, spec.rate, base=spec.data.global_batch)
        self.counters, self.held_out_counters = Counters(), Counters()
        self.step, self.rows = 0, 0
        self.ended: tuple[EpochEnded, ...] = ()
        self.evaluations: tuple[Evaluated, ...] = ()
        self.restored: Snapshot | None = None
        self._spec, self._parts, self._world_size = spec, LocalParts(), world_size
        self._setup: TrainSetup | None = None
        self.totals = self._new_totals(EpochFacts())

    @property
    def global_batch(self) -> int:
        return self.progress.data.global_batch

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the model's `fb.Table` modules."""
        return tuple(table.name for table in self._parts.tables)

    @property
    def num_bytes(self) -> int:
        """Approximate size of a checkpoint.

        Trained parameters, buffers, and the state of the optimizer.
        """
        if self._setup is None:
            return 0
        model, optimizer = self._setup.model, self._setup.optimizer
        trained = [each for each in model.parameters() if each.requires_grad]
        kept = [state.values() for state in optimizer.state.values() if isinstance(state, Mapping)]
        moments = [each for values in kept for each in values if isinstance(each, Tensor)]
        # A checkpoint with sparse moments is refused by their optimizer's state.
        return sum(each.nbytes for each in (*trained, *model.buffers(), *moments) if not each.is_sparse)

    def place(self, epoch: int, position: int) -> dict[str, float]:
        """Return the position to report for a step.

        The step is in `epoch` and ends at `position`.
        """
        place: dict[str, float] = {"step": self.step, "epoch": epoch, "position": position, "rows": self.rows}
        return place | {"global_batch": self.global_batch, "wait_s": self.counters["wait_s"]}

    def attach(self, setup: TrainSetup, states: Mapping[str, Stateful]) -> None:
        """Track model and optimizer, and attach monitors and policies."""
        self.objects.add(**states)
        self.monitors.attach(setup)
        self.batch_size.attach(setup)
        self._parts, self._setup = setup.parts, setup

    def count_step(self, metrics: Mapping[str, Metric], evaluated: Mapping[str, float]) -> PendingBatches:
        """Count one step, and return its batches.

        Metrics of an evaluation are not averaged over the epoch.

        Raises `BadJob` if there are none.
        """
        drawn = self.progress.pop_pending(self.step + 1)
        self.step, self.rows = self.step + 1, self.rows + drawn.size
        self.restored = None
        self.totals.add_rows(drawn.size)
        self.totals.add_metrics(metrics)
        self.monitors.step(self.step, {**metrics, **evaluated})
        self.batch_size.step(rows=drawn.rows, size=drawn.size)
        return drawn

    def add_evaluation(self, evaluation: Evaluated) -> Evaluated:
        """Add an evaluation of this step.

        Returns it as `keep_best` judges it.
        """
        rule = self._spec.keep_best
        judged = evaluation if rule is None else rule.judged(evaluation, self.evaluations)
        self.evaluations = with_evaluation(self.evaluations, judged)
        return judged

    @property
    def end(self) -> str | None:
        """Reason of an end before the last epoch, or None."""
        last, rule = self._spec.max_steps, self._spec.keep_best
        if self.progress.cursor.epoch >= self._spec.epochs:
            return None
        if last is not None and self.step >= last:
            return f"max_steps={last}"
        return None if rule is None else rule.end(self.evaluations)

    def evaluate_monitors(self) -> tuple[Verdict, dict[str, Metric]]:
        """Return this rank's verdict and metrics since the last checkpoint.

        The metrics are of its monitors and of the strategy.
        """
        began = time.perf_counter()
        verdict, own, shared = self.monitors.verdict(), self.monitors.metrics(), self._parts.metrics()
        self.totals.add_metrics(own)
        self.totals.add_metrics(shared, are_of_all_ranks=True)
        self.totals.add_time("checkpoint_s", time.perf_counter() - began)
        return verdict, {**own, **shared}

    def decide_batch(self, requested: int | None, measured: Sequence[tuple[float, ...]]) -> None:
        """Choose the global batch from here on.

        A size `requested` by a callback or command overrides the job's policy.
        """
        cursor = self.progress.cursor
        asked = self.batch_size.asked
        place = TrainPosition(epoch=cursor.epoch, position=cursor.position, step=self.step, global_batch=asked)
        self.progress.set_global_batch(self.batch_size.decide(place, measured, requested))
        self.scale_rate()

    def scale_rate(self) -> None:
        """Set the learning rate of the next step."""
        self.batch_size.scale_rate(self.global_batch, step=self.step)

    def close_epoch(self, epoch: int, position: int, facts: EpochFacts) -> EpochEnded:
        """Return the results of `epoch`, and start new totals.

        The epoch ends at `position`.
        """
        dropped = self.progress.data.plan.num_rows - position
        ended = facts.epoch_ended(epoch=epoch, step=self.step, dropped_rows=dropped)
        newest = self.evaluations[-1:]
        if newest and newest[0].epoch == epoch:
            ended = replace(ended, metrics={**ended.metrics, **newest[0].metrics})
        self.ended = (*self.ended, ended)
        self.totals = self._new_totals(EpochFacts())
        return ended

    def add_to_last_epoch(self, checkpoint_s: float) -> EpochEnded:
        """Add the time of the last epoch's final checkpoint."""
        last = self.ended[-1]
        last = replace(last, seconds=last.seconds + checkpoint_s, checkpoint_s=last.checkpoint_s + checkpoint_s)
        self.ended = (*self.ended[:-1], last)
        return last

    def snapshot(self, facts: EpochFacts, states: Sequence[Mapping[str, Any]]) -> Snapshot:
        """Return the state to save.

        It has the totals and the random generators of all ranks.
        """
        return Snapshot(
            step=self.step,
            cursor=self.progress.cursor,
            objects=self.objects.state(),
            rng=states,
            rows=self.rows,
            facts=facts,
            ended=self.ended,
            evaluations=self.evaluations,
            monitors=self.monitors.state(),
            batching=self.batch_size.state(),
            skipped=self.progress.skipped,
            statistics=self.progress.data.statistics,
        )

    def restore(self, snapshot: Snapshot, *, rank: int) -> None:
        """Return to the state in `snapshot`.

        Raises `CursorMismatch` if it was trained with other statistics.
        """
        owner = f"the checkpoint of step {snapshot.step}"
        self.progress.data.validate_statistics(snapshot.statistics, owner=owner)
        self.objects.restore(snapshot.objects, step=snapshot.step)
        self.monitors.restore(snapshot.monitors)
        self.step, self.rows = snapshot.step, snapshot.rows
        self.progress.restore(snapshot.cursor, snapshot.skipped)
        self.progress.set_global_batch(self.batch_size.restore(snapshot.batching))
        self.totals = self._new_totals(snapshot.facts.for_rank(rank))
        self.ended, self.evaluations = tuple(snapshot.ended), tuple(snapshot.evaluations)
        self.restored = snapshot

    def _new_totals(self, start: EpochFacts) -> EpochTotals:
        return EpochTotals(self.counters, self.held_out_counters, start, self._world_size)
