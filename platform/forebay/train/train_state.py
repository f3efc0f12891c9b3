"""Where a run stands on one rank: all that a commit saves, and that going back to one puts back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forebay.events import EpochEnded
from forebay.metrics import Counters
from forebay.train.batch_size.controller import BatchSizeController
from forebay.train.batch_size.policy import TrainPosition
from forebay.train.metric import Metric
from forebay.train.monitors.monitor import Verdict
from forebay.train.monitors.monitor_set import MonitorSet
from forebay.train.setup import TrainSetup
from forebay.train.spec import TrainSpec
from forebay.train.state.data_progress import DataProgress, PendingBatches
from forebay.train.state.epoch_totals import EpochFacts, EpochTotals
from forebay.train.state.snapshot import Snapshot
from forebay.train.state.stateful import StatefulObjects


class TrainState:
    """The same on every rank, but for the account. Talks to no other rank, and to no storage.

    `restored` is the snapshot that was put back, until the next step.
    """

    def __init__(self, assignment: TrainSpec) -> None:
        self.course = DataProgress(assignment.data)
        self.checkpointed = StatefulObjects()
        self.watching = MonitorSet(assignment.monitors)
        self.batching = BatchSizeController(assignment.batch, assignment.rate, base=assignment.data.global_batch)
        self.tally, self.held_out_tally = Counters(), Counters()
        self.step, self.rows = 0, 0
        self.ended: tuple[EpochEnded, ...] = ()
        self.restored: Snapshot | None = None
        self.account = self._open_account(EpochFacts())

    @property
    def global_batch(self) -> int:
        return self.course.data.global_batch

    def begin(self, training: TrainSetup) -> None:
        """Track the model and its optimizer, and put to work what watches and steers them."""
        self.checkpointed.add(model=training.model, optimizer=training.optimizer)
        self.watching.begin(training)
        self.batching.begin(training)

    def count(self, metrics: Mapping[str, Metric]) -> PendingBatches:
        """Take one more step, on what was drawn. Raises `BadJob` if that is nothing."""
        drawn = self.course.take(self.step + 1)
        self.step, self.rows = self.step + 1, self.rows + drawn.size
        self.restored = None
        self.account.train(drawn.size)
        self.account.give(metrics)
        self.watching.step(self.step, metrics)
        self.batching.step(rows=drawn.rows, size=drawn.size)
        return drawn

    def judge(self) -> tuple[Verdict, dict[str, float]]:
        """What this rank's monitors make of the steps since the last saved commit, and what they measured."""
        began = time.perf_counter()
        verdict, measured = self.watching.verdict(), self.watching.metrics()
        self.account.give(measured)
        self.account.spend("checkpoint_s", time.perf_counter() - began)
        return verdict, measured

    def decide_batch(self, asked: int | None, measured: Sequence[tuple[float, ...]]) -> None:
        """Cut the batches from here on; what was asked for from outside goes before what the job's policy says."""
        cursor = self.course.cursor
        place = TrainPosition(
            epoch=cursor.epoch, position=cursor.position, step=self.step, global_batch=cursor.global_batch
        )
        decided = self.batching.decide(place, measured)
        self.course.cut(asked or decided)
        self.scale_rate()

    def scale_rate(self) -> None:
        """Set the learning rate of the next step."""
        self.batching.use(self.global_batch, step=self.step)

    def close_epoch(self, epoch: int, position: int, facts: EpochFacts) -> EpochEnded:
        """What `epoch` came to, which is over at `position`; a new account is opened."""
        dropped = self.course.data.plan.num_rows - position
        ended = facts.epoch_ended(epoch=epoch, step=self.step, dropped_rows=dropped)
        self.ended = (*self.ended, ended)
        self.account = self._open_account(EpochFacts())
        return ended

    def add_to_last_epoch(self, checkpoint_s: float) -> EpochEnded:
        """Book the commit that ended the last epoch as part of it."""
        last = self.ended[-1]
        last = replace(last, seconds=last.seconds + checkpoint_s, checkpoint_s=last.checkpoint_s + checkpoint_s)
        self.ended = (*self.ended[:-1], last)
        return last

    def snapshot(self, facts: EpochFacts, states: Sequence[Mapping[str, Any]]) -> Snapshot:
        """All of it, with the account and the random generators of all ranks."""
        return Snapshot(
            step=self.step,
            cursor=self.course.cursor,
            objects=self.checkpointed.state(),
            rng=states,
            rows=self.rows,
            facts=facts,
            ended=self.ended,
            monitors=self.watching.state(),
            batching=self.batching.state(),
            skipped=self.course.skipped,
        )

    def put_back(self, snapshot: Snapshot, *, rank: int) -> None:
        """Stand where `snapshot` was taken."""
        self.checkpointed.put_back(snapshot.objects, step=snapshot.step)
        self.watching.put_back(snapshot.monitors)
        self.step, self.rows = snapshot.step, snapshot.rows
        self.course.go_to(snapshot.cursor, snapshot.skipped)
        self.course.cut(self.batching.put_back(snapshot.batching))
        self.account = self._open_account(snapshot.facts.for_rank(rank))
        self.ended = tuple(snapshot.ended)
        self.restored = snapshot

    def _open_account(self, start: EpochFacts) -> EpochTotals:
        return EpochTotals(self.tally, self.held_out_tally, start)
