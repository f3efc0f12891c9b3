"""What a train function receives: its place in the run, its data, and the one point where its state is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from forebay.cache.disk import DiskCache
from forebay.cache.source import SourceProvider
from forebay.errors import BadJob
from forebay.loader.batch import Batch
from forebay.loader.loader import Loader
from forebay.observe import Tally
from forebay.plan.cursor import Cursor
from forebay.train import rng
from forebay.train.account import Account, Facts, Metric, counted_together, over_ranks
from forebay.train.assignment import Assignment
from forebay.train.checkpointed import Checkpointed, Stateful
from forebay.train.collective import Collective
from forebay.train.commits import CommitDirectory
from forebay.train.data import Data
from forebay.train.events import EpochEnded, Reporter
from forebay.train.feed import Feed
from forebay.train.snapshot import Snapshot
from forebay.train.step_reports import StepReports
from forebay.world import World

TrainFunction = Callable[["Worker"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """Batches handed out since the last commit: the last one's place, the rows of all, and the cursor after them."""

    epoch: int
    position: int
    rows: int
    cursor: Cursor


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
    """

    def __init__(
        self,
        assignment: Assignment,
        collective: Collective,
        cache: DiskCache | SourceProvider | None,
        commits: CommitDirectory,
        reporter: Reporter,
    ) -> None:
        self._assignment, self._data = assignment, assignment.data
        self._collective, self._commits, self._reporter = collective, commits, reporter
        self._data.check_world_size(collective.world.size)
        self._feed = Feed(collective.world, collective.device, cache)
        self._step_reports = StepReports(reporter)
        self._checkpointed = Checkpointed()
        self._step, self._rows, self._cursor = 0, 0, self._data.start
        self._tally, self._held_out_tally = Tally(), Tally()
        self._account = self._open_account(Facts())
        self._drawn: _Drawn | None = None
        self._restored: Snapshot | None = None
        self._ended: tuple[EpochEnded, ...] = ()
        self._out_of_place = True
        self.stopped: str | None = None

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
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch of the next step, from 0; equal to `epochs` when all are done."""
        return self._cursor.epoch

    def run(self, train: TrainFunction) -> None:
        """Seed all generators, so that every rank builds the same model, call `train`, and close what it left open."""
        rng.seed_everything(self.seed)
        try:
            train(self)
        finally:
            self.close()

    def setup(self, model: nn.Module, optimizer: Callable[..., Optimizer]) -> tuple[nn.Module, Optimizer]:
        """Make `model` ready to train on this rank's device, together with the other ranks.

        `optimizer` is called with the model's parameters, e.g. `partial(Adam, lr=1e-3)`. The state of the newest commit
        is put back into both. The model that is returned averages gradients over ranks.
        """
        model = model.to(self.device)
        built = optimizer(model.parameters())
        self._checkpointed.add(model=model, optimizer=built)
        self.restore()
        return self._collective.wrap(model), built

    def track(self, **others: Stateful) -> None:
        """Save and put back more than these two: schedulers, gradient scalers. Between `setup` and the loop."""
        if not self._out_of_place:
            raise BadJob("track() was called in the training loop. Call it between setup() and worker.loader().")
        self._checkpointed.add(**others)
        if self._restored is not None:
            # All of it once more: building a scheduler changes the learning rates of the optimizer.
            self._put_back(self._restored)

    def loader(self) -> Iterator[Batch]:
        """This rank's batches of all epochs that are left, on its device, from the last commit on.

        Ends early after a commit at which the run was asked to stop. Raises `BadJob` if an epoch ends uncommitted.
        """
        self._drawn = None
        with self._feed.loader(self._data, self._tally, self.epochs) as loader:
            loader.seek(self._cursor)
            while self.epoch < self.epochs and self.stopped is None:
                if self._out_of_place:
                    self._take_place(loader)
                for batch in loader:
                    self._draw(batch, loader.cursor())
                    yield self._feed.on_device(batch, self._tally)
                    if self._out_of_place or self.stopped is not None:
                        break
                self._check_committed()

    def held_out(self) -> Iterator[Batch] | None:
        """This rank's part of the held-out data, once through, on its device; None where the job has none.

        The row of a batch with `weight == 0` is a dummy and must not be counted.
        """
        held_out = self._assignment.held_out
        return None if held_out is None else self._evaluation(held_out)

    def commit(self, **metrics: Metric) -> None:
        """Count one step; call it after every `optimizer.step()`.

        Every `commit_every` steps, and at the end of an epoch, all state is saved, so that the run can go on from here;
        other steps wait for no device. `EpochEnded` tells a metric's mean over the epoch's commits and all ranks.

        Raises:
            BadJob: No batch was drawn since the last commit.
            InvalidOption: A metric is not a single number.
        """
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            raise BadJob("commit() was called without a new batch. Call it once per step of `worker.loader()`.")
        self._step, self._rows, self._cursor = self._step + 1, self._rows + drawn.rows, drawn.cursor
        self._restored = None
        self._account.train(drawn.rows)
        self._account.give(metrics)
        ends_epoch = self.epoch > drawn.epoch
        self._report(drawn.epoch, drawn.position, metrics, due=ends_epoch)
        if ends_epoch:
            self._end_epoch(drawn.epoch)
        elif self._step % self._assignment.commit_every == 0:
            self._save()

    def report(self, **metrics: Metric) -> None:
        """Tell metrics at once. Like those of `commit`, they count for the epoch whose last commit is yet to come."""
        self._account.give(metrics)
        self._report(self._cursor.epoch, self._cursor.position, metrics, due=True)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Element-wise sum over ranks of an int64 or float64 array; every rank gets it."""
        return self._collective.sum(values)

    def counted(self) -> dict[str, float]:
        """What this rank has counted since its process began (`forebay.observe.METRICS`), held-out blocks included."""
        return counted_together(self._tally.as_dict(), self._held_out_tally.as_dict())

    def restore(self) -> bool:
        """Put everything back to the newest commit, the position in the data included. False where there is none.

        `setup` does this. Within the training loop it goes back: the next batch is the first one after that commit.
        Raises `CursorMismatch` for a commit of another plan, `BadJob` for one that does not fit the model.
        """
        commit = self._collective.share(self._commits.newest() if self.world.is_first else None)
        if commit is None:
            return False
        self._data.check_cursor(commit.cursor, step=commit.step)
        snapshot = Snapshot.from_commit(commit)
        self._put_back(snapshot)
        if self.world.is_first:
            # Told again: workers may have trained on for epochs after the driver, who would have heard of them, died.
            for ended in snapshot.ended:
                self._reporter.report(ended)
        return True

    def close(self) -> None:
        """End the threads of all loaders, also after an exception in the training loop."""
        self._feed.close()

    def _put_back(self, snapshot: Snapshot) -> None:
        self._checkpointed.put_back(snapshot.objects, step=snapshot.step)
        self._step, self._rows, self._cursor = snapshot.step, snapshot.rows, snapshot.cursor
        self._account = self._open_account(snapshot.facts.for_rank(self.world.rank))
        self._drawn, self._restored, self._out_of_place = None, snapshot, True
        self._ended = tuple(snapshot.ended)

    def _take_place(self, loader: Loader) -> None:
        """Stand where the next batch comes from, with the random numbers that an undisturbed run would draw there."""
        loader.seek(self._cursor)
        states = self._restored.rng if self._restored else ()
        if len(states) == self.world.size:
            rng.put_back(states[self.world.rank], self.device)
        else:
            rng.seed_everything(self.seed, self._step, self.world.rank)
        self._account.start_clock()
        self._out_of_place = False

    def _draw(self, batch: Batch, cursor: Cursor) -> None:
        rows = batch.size + (self._drawn.rows if self._drawn else 0)
        self._drawn = _Drawn(epoch=batch.epoch, position=batch.position + batch.size, rows=rows, cursor=cursor)

    def _check_committed(self) -> None:
        if self._drawn is not None:
            raise BadJob(
                f"epoch {self._drawn.epoch} ended without a commit. Call worker.commit() after every optimizer.step(): "
                "it counts the steps and saves the run.",
                epoch=self._drawn.epoch,
            )

    def _report(self, epoch: int, position: int, metrics: Mapping[str, Metric], *, due: bool) -> None:
        if self.world.is_first:
            place = {"step": self._step, "epoch": epoch, "position": position, "rows": self._rows}
            self._step_reports.tell(metrics, due=due, place=place | {"wait_s": self._tally["wait_s"]})

    def _save(self) -> None:
        began = time.perf_counter()
        facts, states = self._exchange()
        self._write(facts, states, ended=self._ended)
        self._account.spend("commit_s", time.perf_counter() - began)

    def _end_epoch(self, epoch: int) -> None:
        began = time.perf_counter()
        facts, states = self._exchange()
        ended = facts.epoch_ended(epoch=epoch, step=self._step, dropped_rows=self._data.dropped_rows)
        self._write(Facts(), states, ended=(*self._ended, ended))
        took = time.perf_counter() - began
        ended = replace(ended, seconds=ended.seconds + took, commit_s=ended.commit_s + took)
        self._ended = (*self._ended, ended)
        if self.world.is_first:
            self._reporter.report(ended)
        self._account = self._open_account(Facts())

    def _exchange(self) -> tuple[Facts, list[dict[str, Any]]]:
        """The one collective of a commit: every rank's account and generators, and whether rank 0 was asked to stop."""
        stop = self._reporter.stop_requested() if self.world.is_first else None
        ranks = self._collective.gather((self._account.facts(), rng.capture(self.device), stop))
        self.stopped = ranks[0][2] if self.epoch < self.epochs else None
        return over_ranks([facts for facts, _, _ in ranks]), [state for _, state, _ in ranks]

    def _write(self, facts: Facts, states: list[dict[str, Any]], *, ended: tuple[EpochEnded, ...]) -> None:
        if self.world.is_first:
            snapshot = Snapshot(
                step=self._step,
                cursor=self._cursor,
                objects=self._checkpointed.state(),
                rng=states,
                rows=self._rows,
                facts=facts,
                ended=ended,
            )
            self._commits.save(snapshot.to_commit(self.world))

    def _evaluation(self, data: Data) -> Iterator[Batch]:
        began = time.perf_counter()
        try:
            yield from self._feed.once(data, self._held_out_tally)
        finally:
            self._account.spend("eval_s", time.perf_counter() - began)

    def _open_account(self, start: Facts) -> Account:
        return Account(self._tally, self._held_out_tally, start)
