"""What a train function receives: its place in the run, its data, and the one point where its state is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from forebay.cache.disk.disk_cache import DiskCache
from forebay.cache.source import SourceProvider
from forebay.checkpoint.checkpoint import CheckpointStore
from forebay.errors import BadJob
from forebay.events import Commands, Event, Reporter, RolledBack, Warned
from forebay.loader.batch import Batch
from forebay.loader.data import Data
from forebay.loader.loader import Loader
from forebay.loader.worker_loaders import WorkerLoaders
from forebay.train.collectives.collective import Collective
from forebay.train.collectives.exact import LossOf
from forebay.train.commit_vote import CommitDecision, CommitVote
from forebay.train.metric import Metric
from forebay.train.monitors.monitor import Action, Verdict
from forebay.train.rank_zero import broadcast_from_rank_zero, settled_orders
from forebay.train.setup import TrainSetup
from forebay.train.spec import TrainSpec
from forebay.train.state import rng
from forebay.train.state.data_progress import PendingBatches
from forebay.train.state.epoch_totals import EpochFacts, counted_together
from forebay.train.state.snapshot import WHOLE, Snapshot
from forebay.train.state.stateful import Stateful
from forebay.train.step_reporter import StepReports
from forebay.train.strategies.ddp import TORCH_STRATEGIES
from forebay.train.strategies.strategy import (
    BuildOptimizer,
    Strategies,
    Strategy,
    StrategyOptions,
    build_strategy,
    weighted_backward,
)
from forebay.train.train_state import TrainState
from forebay.world import World

TrainFunction = Callable[["Worker"], None]


class Worker:
    """One rank of a run, as its train function sees it.

    ```python
    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(Model(), partial(torch.optim.Adam, lr=1e-3))
        for batch in worker.loader():
            loss = criterion(model(batch), batch["label"]) * batch.weight
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            worker.commit(loss=loss)
    ```

    Every method is called by all ranks alike. `stopped` says why the run ended before its last epoch, or is None.
    `resize_to` is the size of the world that goes on from the newest commit, where this world ends for another one.
    """

    def __init__(
        self,
        assignment: TrainSpec,
        collective: Collective,
        cache: DiskCache | SourceProvider | None,
        commits: CheckpointStore,
        reporter: Reporter,
        strategies: Strategies = TORCH_STRATEGIES,
    ) -> None:
        self._assignment = assignment
        self._collective, self._commits, self._reporter = collective, commits, reporter
        assignment.data.validate_world_size(collective.world.size)
        self._feed = WorkerLoaders(collective.world, collective.device, cache)
        self._step_reports = StepReports(reporter)
        self._standing = TrainState(assignment)
        self._course = self._standing.course
        self._out_of_place = True
        self._strategies = strategies
        self._strategy: Strategy | None = None
        self.stopped: str | None = None
        self.resize_to: int | None = None

    @property
    def world(self) -> World:
        return self._collective.world

    @property
    def device(self) -> torch.device:
        return self._collective.device

    @property
    def epochs(self) -> int:
        """How many epochs the job trains for."""
        return self._assignment.epochs

    @property
    def seed(self) -> int:
        """The job's seed; all generators were seeded with it before the train function was called."""
        return self._assignment.seed

    @property
    def step(self) -> int:
        """Commits so far, over the whole run."""
        return self._standing.step

    @property
    def epoch(self) -> int:
        """The epoch of the next step, from 0; equal to `epochs` when all are done."""
        return self._course.cursor.epoch

    @property
    def global_batch(self) -> int:
        """Rows of the next step, over all ranks (the last batches of an epoch may be smaller)."""
        return self._standing.global_batch

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are trained, and nothing is left to do for any worker."""
        return self.epoch >= self.epochs and self.stopped is None

    def run(self, train: TrainFunction) -> None:
        """Seed all generators, so that every rank builds the same model, call `train`, and close what it left open."""
        rng.seed_everything(self.seed)
        try:
            train(self)
            if self.is_finished or self.stopped is not None:
                self._flush()
        finally:
            self.close()

    def setup(
        self, model: nn.Module, optimizer: BuildOptimizer, *, strategy: str = "ddp"
    ) -> tuple[nn.Module, Optimizer]:
        """Make `model` ready to train on this rank's device, together with the other ranks.

        `optimizer` is called with the model's parameters, e.g. `partial(Adam, lr=1e-3)`. The state of the newest
        checkpoint is restored into both. The returned model reduces gradients over ranks.

        `strategy` names how ranks train together: "ddp" holds the whole model on every rank. Raises `InvalidOption`,
        before anything is built, for a strategy that the job's driver does not have.
        """
        spec = self._assignment
        options = StrategyOptions(reduction=spec.reduction, plan=spec.data.plan, seed=spec.seed)
        chosen = build_strategy(strategy, self._strategies, self._collective, options)
        model, built = chosen.prepare(model, optimizer)
        self._standing.begin(TrainSetup(model=model, optimizer=built, device=self.device, world_size=self.world.size))
        self.restore()
        self._standing.scale_rate()
        self._strategy = chosen
        return chosen.wrap(model), built

    def track(self, **others: Stateful) -> None:
        """Save and put back more than these two: schedulers, gradient scalers. Between `setup` and the loop."""
        if not self._out_of_place:
            raise BadJob("track() was called in the training loop. Call it between setup() and worker.loader().")
        self._standing.checkpointed.add(**others)
        if self._standing.restored is not None:
            # All of it once more: building a scheduler changes the learning rates of the optimizer.
            self._put_back(self._standing.restored)

    def loader(self) -> Iterator[Batch]:
        """This rank's batches of all epochs that are left, on its device, from the last commit on.

        Ends early after a commit at which the run was asked to stop, or to go on as a world of another size. Raises
        `BadJob` if an epoch ends uncommitted.
        """
        self._course.forget_drawn()
        while self._goes_on:
            data = self._course.data
            with self._feed.loader(data, self._standing.tally, self.epochs) as loader:
                loader.seek(self._course.cursor)
                yield from self._batches(loader, data)

    def backward(self, batch: Batch, loss_of: LossOf) -> torch.Tensor:
        """Leave the gradient of the global batch's mean loss in `.grad`, and return the loss, for `commit(loss=...)`.

        `loss_of` gives the mean loss over the rows of the batch it is called with: once, or with `reduction="exact"`,
        which cannot do without this method, once for each lane of this rank. Elsewhere it is short for
        `loss = loss_of(batch) * batch.weight; loss.backward()`.
        """
        return weighted_backward(batch, loss_of) if self._strategy is None else self._strategy.backward(batch, loss_of)

    def held_out(self) -> Iterator[Batch] | None:
        """This rank's part of the held-out data, once through, on its device; None where the job has none.

        The row of a batch with `weight == 0` is a dummy and must not be counted.
        """
        held_out = self._assignment.held_out
        return None if held_out is None else self._evaluation(held_out)

    def commit(self, **metrics: Metric) -> None:
        """Count one step; call it after every `optimizer.step()`.

        Every `checkpoint_every` steps, and at the end of an epoch, a checkpoint of all state is saved. Other steps wait
        for no device. `EpochEnded` reports each metric's mean over the epoch's commits and all ranks. Where a monitor
        rejects the steps since the newest checkpoint, all state returns to that checkpoint, as `restore` does.

        Raises:
            BadJob: No batch was drawn since the last commit.
            InvalidOption: A metric is not a single number.
            Diverged: A monitor rejects what is trained from the newest commit, again and again.
        """
        drawn = self._standing.count(metrics)
        if self.epoch > drawn.epoch:
            self._end_epoch(drawn.epoch, drawn.position, metrics)
        elif self.step % self._assignment.checkpoint_every == 0:
            self._save(drawn, metrics)
        else:
            self._report(drawn.epoch, drawn.position, metrics, due=False)
        self._standing.scale_rate()

    def report(self, **metrics: Metric) -> None:
        """Tell metrics at once. Like those of `commit`, they count for the epoch whose last commit is yet to come."""
        self._standing.account.give(metrics)
        self._report(self._course.cursor.epoch, self._course.cursor.position, metrics, due=True)

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over ranks of an int64 or float64 array; every rank gets it."""
        return self._collective.all_reduce(values)

    def counted(self) -> dict[str, float]:
        """What this rank has counted since its process began (`forebay.metrics.METRICS`), held-out blocks included."""
        return counted_together(self._standing.tally.as_dict(), self._standing.held_out_tally.as_dict())

    def restore(self) -> bool:
        """Put everything back to the newest commit, the position in the data included. False where there is none.

        `setup` does this. Within the training loop it goes back: the next batch is the first one after that commit.
        Raises `CursorMismatch` for a commit of another plan, `BadJob` for one that does not fit the model.
        """
        # Awaited: storage may take longer than a collective may.
        checkpoint = broadcast_from_rank_zero(partial(self._commits.newest, {WHOLE}), self._collective)
        if checkpoint is None:
            return False
        self._assignment.data.validate_cursor(checkpoint.cursor, step=checkpoint.step)
        snapshot = Snapshot.from_checkpoint(checkpoint)
        self._put_back(snapshot)
        if self.world.is_first:
            # Told again: workers may have trained on for epochs after the driver, who would have heard of them, died.
            for ended in snapshot.ended:
                self._reporter.report(ended)
        return True

    def close(self) -> None:
        """End the threads of all loaders, also after an exception in the training loop."""
        self._feed.close()

    @property
    def _goes_on(self) -> bool:
        return self.epoch < self.epochs and self.stopped is None and self.resize_to is None

    def _batches(self, loader: Loader, data: Data) -> Iterator[Batch]:
        """As long as they are those of `data`, which a commit may replace."""
        while self._goes_on and self._course.data is data:
            if self._out_of_place:
                self._take_place(loader)
            if (end := self._course.end_of_skipped_epoch()) is not None:
                epoch = self._course.begin_next_epoch()
                self._end_epoch(epoch, end, {})
                loader.seek(self._course.cursor)
                continue
            for batch in self._course.batches(loader):
                yield self._feed.to_device(batch, self._standing.tally)
                if self._out_of_place or not self._goes_on or self._course.data is not data:
                    break
            self._course.check_committed()

    def _take_place(self, loader: Loader) -> None:
        """Stand where the next batch comes from, with the random numbers that an undisturbed run would draw there."""
        if self._standing.watching.is_on and self.step == 0 and self._standing.restored is None:
            # A monitor that rejects the very first steps needs a commit to go back to.
            self._write(EpochFacts(), ())
        loader.seek(self._course.cursor)
        states = self._standing.restored.rng if self._standing.restored else ()
        if len(states) == self.world.size:
            rng.put_back(states[self.world.rank], self.device)
        else:
            rng.seed_everything(self.seed, self.step, self.world.rank)
        self._standing.account.start_clock()
        self._out_of_place = False

    def _save(self, drawn: PendingBatches, metrics: Mapping[str, Metric]) -> None:
        verdict, measured = self._standing.judge()
        began = time.perf_counter()
        council = self._confer(verdict, self._reporter.orders() if self.world.is_first else Commands())
        if self._is_rejected(council.verdict):
            return
        self._obey(council, council.orders)
        self._report(drawn.epoch, drawn.position, {**metrics, **measured}, due=not self._goes_on)
        self._write(council.facts, council.rng)
        self._standing.account.spend("checkpoint_s", time.perf_counter() - began)

    def _end_epoch(self, epoch: int, position: int, metrics: Mapping[str, Metric]) -> None:
        """Saved like any other commit, but callbacks are heard before: what they ask for takes effect here."""
        verdict, measured = self._standing.judge()
        began = time.perf_counter()
        council = self._confer(verdict, Commands())
        if self._is_rejected(council.verdict):
            return
        self._report(epoch, position, {**metrics, **measured}, due=True)
        self._standing.close_epoch(epoch, position, council.facts)
        if not self._goes_on:
            # A run that callbacks know to be over must be found complete.
            self._write(EpochFacts(), council.rng)
            self._flush()
        closed = time.perf_counter()
        self._tell(self._standing.add_to_last_epoch(closed - began))
        if self._goes_on:
            self._obey(council, settled_orders(self._reporter, self._collective))
            self._write(EpochFacts(), council.rng)
            self._standing.account.spend("checkpoint_s", time.perf_counter() - closed)

    def _confer(self, verdict: Verdict, orders: Commands) -> CommitDecision:
        """The one exchange of a commit."""
        word = CommitVote(
            facts=self._standing.account.facts(),
            rng=rng.light(rng.capture(self.device)),
            verdict=verdict,
            measured=self._standing.batching.measured(),
            orders=orders,
        )
        return CommitDecision.of(self._collective.all_gather_object(word))

    def _obey(self, council: CommitDecision, orders: Commands) -> None:
        self._standing.decide_batch(orders.global_batch, council.measured)
        self.stopped = orders.stop
        if orders.stop is None:
            self.resize_to = orders.resize_to(self.world.size)

    def _is_rejected(self, verdict: Verdict) -> bool:
        """Whether the steps since the newest commit are given up, and this is no commit."""
        match verdict.action:
            case Action.GO_ON:
                return False
            case Action.WARN:
                self._tell(Warned(reason=verdict.reason, step=verdict.step or self.step))
                return False
            case Action.STOP:
                self.stopped = verdict.reason
            case _:
                self._roll_back(verdict)
        return True

    def _roll_back(self, verdict: Verdict) -> None:
        from_step = verdict.step or self.step
        skipped = self._course.skip(verdict.step) if verdict.action is Action.SKIP else 0
        restored = self.restore()
        assert restored, "the first commit is saved before the first step"
        self._standing.watching.count_roll_back(verdict, to_step=self.step)
        self._tell(RolledBack(reason=verdict.reason, from_step=from_step, to_step=self.step, skipped_rows=skipped))

    def _write(self, facts: EpochFacts, states: Sequence[Mapping[str, Any]]) -> None:
        if self.world.is_first:
            snapshot = self._standing.snapshot(facts, [rng.whole(state) for state in states])
            self._commits.save(snapshot.to_checkpoint(self.world))
        self._course.saved()

    def _flush(self) -> None:
        broadcast_from_rank_zero(self._commits.flush, self._collective)

    def _put_back(self, snapshot: Snapshot) -> None:
        self._standing.put_back(snapshot, rank=self.world.rank)
        self._out_of_place = True

    def _tell(self, event: Event) -> None:
        if self.world.is_first:
            self._reporter.report(event)

    def _report(self, epoch: int, position: int, metrics: Mapping[str, Metric], *, due: bool) -> None:
        if self.world.is_first:
            place: dict[str, float] = {
                "step": self.step,
                "epoch": epoch,
                "position": position,
                "rows": self._standing.rows,
            }
            place |= {"global_batch": self.global_batch, "wait_s": self._standing.tally["wait_s"]}
            self._step_reports.tell(metrics, due=due, place=place)

    def _evaluation(self, data: Data) -> Iterator[Batch]:
        began = time.perf_counter()
        try:
            yield from self._feed.one_epoch(data, self._standing.held_out_tally)
        finally:
            self._standing.account.spend("eval_s", time.perf_counter() - began)
