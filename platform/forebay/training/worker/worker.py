"""The object that a train function receives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import SourceProvider
from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.loader.loader import Loader
from forebay.errors import BadJob, InvalidOption
from forebay.events import Evaluated, Reporter, Request, RolledBack, Warned
from forebay.runtime.metrics import Counters
from forebay.training.checkpoint.checkpoint import CheckpointStore
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.micro_batches import LossOf, MicroBatches
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.state import rng
from forebay.training.state.data_progress import PendingBatches, num_rows
from forebay.training.state.epoch_totals import EpochFacts, counted_together
from forebay.training.state.metric import Metric
from forebay.training.state.setup import TrainSetup
from forebay.training.state.snapshot import Snapshot
from forebay.training.state.stateful import Stateful
from forebay.training.strategies.strategy import BuildOptimizer, Strategies, Strategy, build_strategy
from forebay.training.strategies.torch_strategies import TORCH_STRATEGIES
from forebay.training.tables.strategy import TablesOption, with_tables
from forebay.training.worker.checkpoints import RankCheckpoints
from forebay.training.worker.commit_vote import CommitDecision, CommitVote
from forebay.training.worker.evaluator import EvaluateNow, Evaluator, FoundEvaluation, without_evaluation
from forebay.training.worker.rank_zero import synced_request
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.step_reporter import StepReports
from forebay.training.worker.train_state import TrainState
from forebay.world import World

TrainFunction = Callable[["Worker"], None]


class Worker:
    """One rank of a run, seen by its train function.

    ```python
    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(Model(), partial(torch.optim.Adam, lr=1e-3))
        for batch in worker.loader():
            loss = criterion(model(batch), batch["label"]) * batch.weight
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            worker.commit(loss=loss)
    ```

    All ranks must call every method alike. `stopped` is the reason of an end before the last epoch, or None.
    `resize_to` is the world size with which the run continues from the newest checkpoint, or None.
    Then this worker ends, or trains in the next world.
    """

    def __init__(
        self,
        spec: TrainSpec,
        collective: Collective,
        cache: DiskCache | SourceProvider | None,
        checkpoints: CheckpointStore,
        reporter: Reporter,
        strategies: Strategies = TORCH_STRATEGIES,
    ) -> None:
        self._spec, self._collective, self._reporter = spec, collective, reporter
        self._checkpoints = RankCheckpoints(collective, checkpoints)
        spec.data.validate_world_size(collective.world.size)
        self._cache, self._loaders = cache, set[Loader]()
        self._step_reports = StepReports(reporter, collective.world)
        self._generators = rng.RankGenerators()
        self._state = TrainState(spec, collective.world.size)
        self._progress = self._state.progress
        self._evaluator: Evaluator | None = None
        self._is_displaced, self._strategies = True, strategies
        self._has_reserved = False
        self._strategy: Strategy | None = None
        self.stopped: str | None = None
        self.resize_to: int | None = None

    @property
    def world(self) -> World:
        """Rank of this worker and number of ranks."""
        return self._collective.world

    @property
    def rank(self) -> int:
        """Rank of this worker, from 0: `world.rank`."""
        return self.world.rank

    @property
    def device(self) -> torch.device:
        """Device of this rank's model and batches."""
        return self._collective.device

    @property
    def epochs(self) -> int:
        """Number of epochs of the job."""
        return self._spec.epochs

    @property
    def seed(self) -> int:
        """Seed of the job.

        All generators were seeded with it before the train function was called.
        """
        return self._spec.seed

    @property
    def step(self) -> int:
        """Number of steps so far, over the whole run."""
        return self._state.step

    @property
    def epoch(self) -> int:
        """Epoch of the next step, from 0.

        Equal to `epochs` when all are done.
        """
        return self._progress.cursor.epoch

    @property
    def global_batch(self) -> int:
        """Rows of the next step, over all ranks.

        The last batches of an epoch may be smaller.
        """
        return self._state.global_batch

    @property
    def progress(self) -> float:
        """Trained share of the run, 0 to 1.

        Of the rows of all epochs, or of `max_steps` if that is more. The same in every world.
        """
        rows, last = self._progress.share_of(self.epochs), self._spec.max_steps
        return rows if last is None else min(max(rows, self.step / last), 1.0)

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are trained."""
        return self.epoch >= self.epochs and self.stopped is None

    def run(self, train: TrainFunction) -> None:
        """Seed all generators, and call `train`.

        So every rank builds the same model.

        Closes its loaders.
        """
        rng.seed_everything(self.seed)
        try:
            train(self)
            if self.is_finished or self.stopped is not None:
                self._checkpoints.flush()
        finally:
            self.close()

    def setup(
        self, model: nn.Module, optimizer: BuildOptimizer, *, strategy: str | None = None, tables: TablesOption = None
    ) -> tuple[nn.Module, Optimizer]:
        """Make `model` ready to train on this rank's device.

        The returned one reduces gradients over ranks.

        Restores model and optimizer from the newest checkpoint.

        Args:
            model: Any module, with the same parameters on every rank.
            optimizer: Called with the model's parameters, e.g. `partial(Adam, lr=1e-3)`.
            strategy: Name of the way in which ranks train together. None: the job's.
            tables: Optimizer of the rows of all `fb.Table` modules of the model, or `fb.tables.Tables`.

        Raises as `restore`, and `InvalidOption`, before anything is built, if the driver does not have this strategy.
        """
        if not callable(optimizer):
            raise InvalidOption(
                f"optimizer={type(optimizer).__name__}(...) is built already, and setup() moves the parameters first. "
                "Give what builds it: torch.optim.Adam, or partial(torch.optim.Adam, lr=1e-3)."
            )
        name = strategy or self._spec.strategy
        options = self._spec.options_of(name, lambda: self._state.rows)
        inner = build_strategy(name, self._strategies, self._collective, options)
        chosen = with_tables(inner, name, model, tables, self._collective, options)
        self._strategy = self._checkpoints.strategy = chosen
        model, built = chosen.prepare(model, optimizer)
        size, parts = self.world.size, chosen.local_parts()
        setup = TrainSetup(model=model, optimizer=built, device=self.device, world_size=size, parts=parts)
        self._state.attach(setup, chosen.states(model, built))
        self.restore()
        self._state.scale_rate()
        return chosen.wrap(model), built

    def track(self, **others: Stateful) -> None:
        """Save and restore more objects: schedulers, gradient scalers.

        Call it between `setup` and the loop. Raises `BadJob` for a name that another object has, and for a gradient
        scaler of a model with `fb.Table` modules.
        """
        if not self._is_displaced:
            raise BadJob("track() was called in the training loop. Call it between setup() and worker.loader().")
        self._refuse_scalers(others)
        self._state.objects.add(**others)
        if self._state.restored is not None:
            # Restore everything again: building a scheduler changes the learning rates of the optimizer.
            self._restore(self._state.restored)

    def evaluate_with(self, evaluate: EvaluateNow) -> None:
        """Evaluate the model by `evaluate()`, which all ranks call together.

        At the end of each epoch and after the last step, and with the job's `eval_every` before the first step and
        every so many steps. It returns metrics, or an `fb.Evaluation` with texts of the model. They are
        reported as `Evaluated`, and with the metrics of `commit`. Call it between `setup` and `loader`. The model must
        be in training mode again afterwards.
        """
        self._evaluator = Evaluator(self._spec, self._collective, evaluate)

    def loader(self) -> Iterator[Batch]:
        """Yield this rank's batches of all remaining epochs.

        They are on its device and continue from the last commit.

        A batch maps array names to tensors [rows, ...]. Ends early after a commit at which the run must stop or
        continue with another world size. Raises `BadJob` if an epoch ends uncommitted.
        """
        self._progress.discard_pending()
        if self._evaluator is None and (self._spec.eval_every is not None or self._spec.keep_best is not None):
            raise without_evaluation(self._spec)
        self._state.monitors.attach_without_model(self.device, self.world.size)
        self.stopped = self.stopped or self._state.end
        while self._goes_on:
            data = self._progress.data
            with self._loader(data, self._state.counters, self.epochs) as loader:
                loader.seek(self._progress.cursor)
                yield from self._batches(loader, data)

    def backward(
        self, batch: Batch, loss_of: LossOf, *, weigh_by: str | None = None, micro_rows: int | None = None
    ) -> torch.Tensor:
        """Leave the gradient of the global batch's loss in `.grad`.

        Returns the loss, for `commit(loss=...)`. With `weigh_by` it is the global batch's, otherwise this rank's share.

        `loss_of` returns the mean loss over the rows of the batch it is called with. With `weigh_by`, an array [rows],
        it returns a sum, and the loss is the sum over the global batch divided by the array's sum. It is called once,
        for each lane of this rank with `reduction="exact"` (which requires this method), or for `micro_rows` rows.
        """
        passes = MicroBatches(rows=micro_rows, weigh_by=weigh_by)
        if self._strategy is None:
            return passes.over_ranks(batch, loss_of, self._collective, self._spec.data.plan)
        return self._strategy.backward(batch, loss_of, passes)

    def micro_batches(self, batch: Batch, micro_rows: int) -> list[Batch]:
        """Passes of at most `micro_rows` rows, as `backward` makes them.

        As many on each rank: some may be a dummy row, with the weight 0.
        """
        passes = MicroBatches(rows=micro_rows)
        return passes.parts(batch, passes.num_passes(batch, self._spec.data.plan, self.world))

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Clip the gradient of the global batch to `max_norm`.

        Returns the norm before, a scalar.

        Call it between the backward pass and `optimizer.step()`. It means the same under every strategy.
        """
        assert self._strategy is not None, "setup() comes first"
        return self._strategy.clip_grad_norm(max_norm)

    def held_out(self) -> Iterator[Batch] | None:
        """Yield this rank's held-out batches once, on its device.

        Returns None if the job has none.

        The row of a batch with `weight == 0` is a dummy and must not be counted.
        """
        held_out = self._spec.held_out
        return None if held_out is None else self._evaluation(held_out)

    def commit(self, **metrics: Metric) -> None:
        """Count one step. Call it after every `optimizer.step()`.

        Every `checkpoint_every` steps, and at the end of an epoch, a checkpoint of all state is saved. Other steps wait
        for no device. `EpochEnded` reports each metric's mean over the epoch's commits and all ranks. If a monitor
        rejects the steps since the newest checkpoint, all state returns to that checkpoint, as `restore` does.

        Raises `BadJob` if no batch was drawn since the last commit, and for a metric that an evaluation has too,
        `InvalidOption` for a metric that is not a single number, `Diverged` if a monitor rejects the steps after the
        newest checkpoint several times in a row, or ends the run, as the one of `Job.nan_guard` does for a loss that is
        not finite.
        """
        evaluator, found = self._evaluator, None
        if evaluator is not None and evaluator.is_due(self.step + 1, ends_epoch=self._progress.ends_epoch):
            found = self._evaluation_by(evaluator)
        evaluated = {} if found is None else found.metrics
        if twice := sorted(metrics.keys() & evaluated.keys()):
            raise BadJob(
                f"the evaluation and commit() both have a metric {twice[0]!r}, and one would hide the other. Give the "
                f"evaluation's another name, such as 'validation_{twice[0]}'."
            )
        drawn = self._state.count_step(metrics, evaluated)
        metrics = {**metrics, **evaluated}
        self._checkpoints.raise_failed()
        if not self._has_reserved:
            self._has_reserved = True
            self._checkpoints.reserve(lambda: self._state.num_bytes, self._state.objects.state)
        self._step_reports.count(self.step, drawn, self.global_batch)
        if self.epoch > drawn.epoch:
            self._end_epoch(drawn.epoch, drawn.position, metrics, found)
        elif self.step % self._spec.checkpoint_every == 0 or found is not None or self.step == self._spec.max_steps:
            self._save(drawn, metrics, found)
        else:
            self._report(drawn.epoch, drawn.position, metrics, due=False)
        self._state.scale_rate()

    def report(self, **metrics: Metric) -> None:
        """Report metrics at once.

        Like `commit`'s metrics, they count for the current epoch.

        Raises `InvalidOption` for a metric that is not a single number.
        """
        self._state.totals.add_metrics(metrics)
        self._report(self._progress.cursor.epoch, self._progress.cursor.position, metrics, due=True)

    def warn(self, reason: str) -> None:
        """Report a `Warned` event about this step. Training goes on."""
        self._step_reports.emit(Warned(reason=reason, step=self.step))

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        """Sum an int64 or float64 array over ranks.

        Every rank gets the element-wise sum, in the same shape.
        """
        return self._collective.all_reduce(values)

    def counted(self) -> dict[str, float]:
        """Return this rank's counters since its process started.

        They include held-out data; `runtime.metrics.METRICS` names them.
        """
        return counted_together(self._state.counters.as_dict(), self._state.held_out_counters.as_dict())

    def restore(self) -> bool:
        """Restore state and position from the newest checkpoint.

        Returns False without one.

        `setup` calls it. In the training loop, the next batch is then the first one after that checkpoint.
        Raises `CursorMismatch` for a checkpoint of another plan, `BadJob` for one that does not fit the model.
        """
        checkpoint = self._checkpoints.newest()
        if checkpoint is None:
            return False
        self._spec.data.validate_cursor(checkpoint.cursor, step=checkpoint.step)
        snapshot = Snapshot.from_checkpoint(checkpoint)
        self._restore(snapshot)
        self._step_reports.catch_up(snapshot.evaluations, snapshot.ended)
        return True

    def close(self) -> None:
        """End all loaders' threads and leave the strategy.

        Called also after an exception in the training loop.
        """
        # A training loop that raises leaves its loader open in the frames of the traceback.
        while self._loaders:
            self._loaders.pop().close()
        if self._strategy is not None:
            self._strategy.close()
            self._strategy = None

    @contextmanager
    def _loader(self, data: Data, counters: Counters, epochs: int = 1) -> Iterator[Loader]:
        """Open a loader of this rank's part of `data` for a block."""
        with Loader(
            data, self._cache, world=self.world, epochs=epochs, counters=counters, device=self.device
        ) as loader:
            self._loaders.add(loader)
            yield loader
        self._loaders.discard(loader)

    @property
    def _goes_on(self) -> bool:
        return self.epoch < self.epochs and self.stopped is None and self.resize_to is None

    def _batches(self, loader: Loader, data: Data) -> Iterator[Batch]:
        """Yield batches until `data` ends or a commit replaces it."""
        while self._goes_on and self._progress.data is data:
            if self._is_displaced:
                self._start_here(loader)
            if (end := self._progress.end_of_skipped_epoch()) is not None:
                self._end_epoch(self._progress.start_next_epoch(), end, {})
                loader.seek(self._progress.cursor)
                continue
            for batch in self._progress.batches(loader):
                yield batch
                if self._is_displaced or not self._goes_on or self._progress.data is not data:
                    break
            self._progress.require_committed()

    def _start_here(self, loader: Loader) -> None:
        """Seek to the cursor and restore the random generators.

        They continue as in an undisturbed run.
        """
        if self.step == 0 and self._state.restored is None:
            evaluator = self._evaluator if self._evaluator is not None and self._evaluator.begins else None
            if evaluator is not None:
                found = self._evaluation_by(evaluator)
                self._state.totals.add_time("seconds", found.seconds)
                self._report(0, 0, found.metrics, due=True)
                self._record(found, epoch=0, position=0)
            # A monitor that rejects the very first steps needs a checkpoint to return to.
            if self._state.monitors.may_go_back or evaluator is not None:
                self._save_checkpoint(EpochFacts(), ())
        loader.seek(self._progress.cursor)
        states = self._state.restored.rng if self._state.restored else ()
        if len(states) == self.world.size:
            rng.restore(states[self.world.rank], self.device)
        else:
            rng.seed_everything(self.seed, self.step, self.world.rank)
        self._state.totals.start_clock()
        self._is_displaced = False

    def _save(self, drawn: PendingBatches, metrics: Mapping[str, Metric], found: FoundEvaluation | None) -> None:
        verdict, measured = self._state.evaluate_monitors()
        began = time.perf_counter()
        decision = self._exchange_votes(verdict, self._reporter.request() if self.world.is_first else Request())
        if self._is_rejected(decision.verdict):
            return
        self._apply(decision, decision.request)
        is_due = found is not None or self.step == self._spec.max_steps or not self._goes_on
        self._report(drawn.epoch, drawn.position, {**metrics, **measured}, due=is_due)
        self._record(found, epoch=drawn.epoch, position=drawn.position)
        self._end_early()
        self._save_checkpoint(decision.facts, self._generators.of_ranks)
        self._state.totals.add_time("checkpoint_s", time.perf_counter() - began)

    def _end_epoch(
        self, epoch: int, position: int, metrics: Mapping[str, Metric], found: FoundEvaluation | None = None
    ) -> None:
        """Save a checkpoint after the callbacks.

        Their requests take effect here.
        """
        verdict, measured = self._state.evaluate_monitors()
        began = time.perf_counter()
        decision = self._exchange_votes(verdict, Request())
        if self._is_rejected(decision.verdict):
            return
        self._report(epoch, position, {**metrics, **measured}, due=True)
        self._record(found, epoch=epoch, position=position, ends_epoch=True)
        self._end_early()
        self._state.close_epoch(epoch, position, decision.facts)
        if not self._goes_on:
            # A run whose end is known to callbacks must be complete in storage.
            self._save_checkpoint(EpochFacts(), self._generators.of_ranks)
            self._checkpoints.flush()
        closed = time.perf_counter()
        self._step_reports.emit(self._state.add_to_last_epoch(closed - began))
        if self._goes_on:
            self._apply(decision, synced_request(self._reporter, self._collective))
            self._save_checkpoint(EpochFacts(), self._generators.of_ranks)
            self._state.totals.add_time("checkpoint_s", time.perf_counter() - closed)

    def _evaluation_by(self, evaluator: Evaluator) -> FoundEvaluation:
        with self._state.totals.timed("eval_s"):
            return evaluator.found()

    def _record(self, found: FoundEvaluation | None, *, epoch: int, position: int, ends_epoch: bool = False) -> None:
        """Record and report an evaluation. A checkpoint follows."""
        if found is None:
            return
        place: dict[str, Any] = {"step": self.step, "epoch": epoch, "position": position, "rows": self._state.rows}
        made = Evaluated(metrics=found.metrics, samples=found.samples, ends_epoch=ends_epoch, **place)
        self._step_reports.emit(self._state.add_evaluation(made))

    def _end_early(self) -> None:
        """Stop at the job's last step, or as `keep_best` says."""
        if self.stopped is None and (reason := self._state.end) is not None:
            self.stopped, self.resize_to = reason, None

    def _exchange_votes(self, verdict: Verdict, request: Request) -> CommitDecision:
        """Run the one exchange of a checkpoint."""
        states = self._generators.news(rng.light(rng.capture(self.device)))
        facts, measured = self._state.totals.facts(), self._state.batch_size.measured()
        vote = CommitVote(facts=facts, rng=states, verdict=verdict, measured=measured, request=request)

        def decide(votes: Sequence[CommitVote]) -> CommitDecision:
            self._generators.hear([each.rng for each in votes])
            return CommitDecision.of(votes).naming_rows(self._progress, run=self._spec.run)

        return self._collective.combine(vote, decide)

    def _apply(self, decision: CommitDecision, request: Request) -> None:
        self._state.decide_batch(request.global_batch, decision.measured)
        self.stopped = request.stop
        if request.stop is None:
            self.resize_to = request.target

    def _is_rejected(self, verdict: Verdict) -> bool:
        """Return whether the steps since the newest checkpoint are rejected.

        Then none is saved.
        """
        if verdict.action is Action.GO_ON:
            return False
        self._step_reports.send()
        match verdict.action:
            case Action.WARN:
                self._step_reports.emit(Warned(reason=verdict.reason, step=verdict.step or self.step))
                return False
            case Action.STOP:
                self.stopped = verdict.reason
                self.report()
            case Action.FAIL:
                raise self._state.monitors.failure(verdict)
            case _:
                self._roll_back(verdict)
        return True

    def _roll_back(self, verdict: Verdict) -> None:
        from_step = verdict.step or self.step
        skipped = self._progress.skip(verdict.step) if verdict.action is Action.SKIP else ()
        restored = self.restore()
        assert restored, "the first checkpoint is saved before the first step"
        self._state.monitors.count_roll_back(verdict, to_step=self.step)
        at: dict[str, Any] = {"from_step": from_step, "to_step": self.step, "skipped": skipped}
        self._step_reports.emit(RolledBack(reason=verdict.reason, skipped_rows=num_rows(skipped), **at))

    def _save_checkpoint(self, facts: EpochFacts, states: Sequence[Mapping[str, Any]]) -> None:
        self._step_reports.send()
        self._checkpoints.save(lambda: self._state.snapshot(facts, states))
        self._progress.mark_saved()
        if self.resize_to is not None:
            # The workers of the next world look for it, and this one may end.
            self._checkpoints.settle()

    def _refuse_scalers(self, others: Mapping[str, Stateful]) -> None:
        """A scaler divides the gradients of parameters by its scale, and rows of tables are none."""
        scalers = [
            name for name, each in others.items() if isinstance(each, torch.amp.GradScaler) and each.is_enabled()
        ]
        if scalers and (tables := self._state.tables):
            raise BadJob(
                f"{scalers[0]!r} scales the loss, and it does not scale the gradients of table {', '.join(tables)} "
                "back: their rows are not parameters. Train in bfloat16 without a scaler, or use nn.Embedding.",
                tables=tables,
            )

    def _restore(self, snapshot: Snapshot) -> None:
        self._state.restore(snapshot, rank=self.world.rank)
        self._is_displaced = True

    def _report(self, epoch: int, position: int, metrics: Mapping[str, Metric], *, due: bool) -> None:
        self._step_reports.report(metrics, due=due, place=self._state.place(epoch, position))

    def _evaluation(self, data: Data) -> Iterator[Batch]:
        with self._state.totals.timed("eval_s"), self._loader(data, self._state.held_out_counters) as loader:
            yield from loader
