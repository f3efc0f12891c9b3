"""One start of a sweep on Ray Tune.

Every trial is a nested run and saves a checkpoint before it ends.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import (
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator

from forebay.errors import ExitCode, InvalidOption, SweepFailed
from forebay.ray_cluster.nodes import gpus_of_cluster, worker_capacity
from forebay.ray_cluster.private_names import SWEEP, check_ray
from forebay.ray_cluster.session import ray_session, session_text, train_environment
from forebay.storage.filesystem import resolve
from forebay.sweep.deadline.allocator import WorkerAllocator
from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.deadline.trial_workers import RayTrialWorkers
from forebay.sweep.layout import TUNE
from forebay.sweep.record.record import Record, State
from forebay.sweep.record.recorder import SweepRecorder
from forebay.sweep.record.status_actor import publish_status
from forebay.sweep.report.live import live_display, tell
from forebay.sweep.report.page import write_page
from forebay.sweep.result import SweepResult
from forebay.sweep.setup import SweepSetup, largest_job, prepare, warn_if_too_large
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial.trainable import TrialRun
from forebay.sweep.tune.filesystems import whole_files, without_secrets
from forebay.sweep.tune.resources import PlacementCleanup, pack_here, trial_resources, worker_share
from forebay.sweep.tune.resume import ResumedSearch, check_resumable, open_record
from forebay.sweep.tune.search import (
    concurrency_limit,
    limit_concurrency,
    make_scheduler,
    make_searcher,
    tune_domain,
    validate_population,
)
from forebay.sweep.tune.settings import SilentReporter, on_interrupt, tune_settings
from forebay.sweep.tune.stopper import SweepStopped, SweepStopper, start_stop_flag
from forebay.training.runs.run_folder import RunFolder, acquire_new_run_folder, acquire_run_folder

# Schedulers that compare trials of the same age: no trial of a round may wait for the end of another.
NEED_ALL = (HyperBandScheduler, HyperBandForBOHB, PopulationBasedTraining)
EXCHANGE = (PopulationBasedTraining, PopulationBasedTrainingReplay)


def tune_trials(sweep: Sweep, began: float, *, show: bool) -> SweepResult:
    """Run or resume a sweep.

    It was called at `began`, on the monotonic clock. Raises as `run_sweep`.
    """
    check_ray(SWEEP)
    setup = prepare(sweep)
    scheduler, searcher = make_scheduler(setup), make_searcher(setup)
    largest = largest_job(setup)
    with ExitStack() as stack:
        stack.enter_context(tune_settings())
        folder = stack.enter_context(_claimed(setup))
        stack.enter_context(train_environment(largest.max_workers))
        tell(f"{session_text()} ...", wanted=show)
        is_ours = stack.enter_context(ray_session(largest.max_cpus))
        _check_is_within_cluster()
        setup = setup.with_gpus(gpus_of_cluster(grows=not is_ours))
        warn_if_too_large(setup.spec.on_gpus(largest))
        try:
            return _Tuning(setup, folder, began).run(scheduler, searcher, show=show)
        except (KeyboardInterrupt, SystemExit):
            again = f"run it again with name={folder.name}: it keeps the trials that have ended"
            tell(f"Sweep {folder.name} was interrupted. To continue, {again}.", wanted=show)
            raise


class _Tuning:
    """One start of a sweep with a claimed folder."""

    def __init__(self, setup: SweepSetup, folder: RunFolder, began: float) -> None:
        self._setup, self._job, self._began = setup, setup.job, began
        self._name, self._path = folder.name, folder.uri
        self._workers = RayTrialWorkers(self._name)

    def run(self, scheduler: TrialScheduler, searcher: Any, *, show: bool) -> SweepResult:
        deadline_s = self._deadline_s(scheduler)
        record, stopper = open_record(self._setup, self._name, self._path), SweepStopper(deadline_s, self._began)
        record.deadline_s, record.slots = deadline_s, self._slots()
        check_resumable(searcher, record)
        if record.trials:
            # A fresh searcher with the same seed would draw the first trials again.
            searcher = make_searcher(self._setup, drawn=len(record.trials))
        validate_population(
            scheduler,
            self._setup.num_rounds * self._setup.grid_size,
            at_once=self._trials_at_once() if self._is_steered else None,
            most=concurrency_limit(searcher, self._setup.sweep.max_concurrent),
        )
        if isinstance(scheduler, DeadlineScheduler):
            self._limit_scheduler(scheduler, searcher, record)
        with ExitStack() as stack:
            stop_flag = stack.enter_context(start_stop_flag())
            status = stack.enter_context(publish_status(record, self._path))
            view = stack.enter_context(live_display(show))
            allocations = self._workers.recent_allocations if self._is_steered else None
            recorder = SweepRecorder(
                record, self._path, self._began, allocations=allocations, listeners=(status.publish, view)
            )
            stopper.connect(stop_flag, lambda: status.stop_reason)
            stack.enter_context(on_interrupt(stopper.interrupt))
            try:
                # `stopper` is last, because it may end the sweep.
                callbacks = [*self._steering_callbacks(scheduler), recorder, SilentReporter(), stopper]
                self._tune(scheduler, searcher, callbacks, stop_flag, record)
            except SweepStopped:
                _record_unfinished(record, stopper)
                if stopper.interrupted_by == signal.SIGTERM:
                    raise SystemExit(ExitCode.TERMINATED) from None
                if stopper.interrupted_by is not None:
                    raise KeyboardInterrupt from None
            finally:
                _record_cut_off(record, getattr(scheduler, "cut_off", ()))
                recorder.close(stopper.reason or getattr(scheduler, "stopped", None))
                view(record)
                write_page(record, self._path)
        self._raise_if_all_failed(record)
        return SweepResult.of(record, self._path)

    def _tune(
        self, scheduler: TrialScheduler, searcher: Any, callbacks: list[Any], stop_flag: Any, record: Record
    ) -> None:
        location, setup = resolve(self._path), self._setup
        spec = setup.trial_spec(self._name, has_exchange=isinstance(scheduler, EXCHANGE))
        payload = pack_here(spec)
        limit = limit_concurrency(searcher, scheduler, self._limit(scheduler, searcher))
        num_samples = setup.num_rounds
        if record.trials:
            most = concurrency_limit(searcher, limit)
            num_samples -= 0 if isinstance(searcher, BasicVariantGenerator) else len(record.trials)
            searcher, limit = ResumedSearch(searcher, record, setup.domains, self._path, most), None
        tune.run(
            tune.with_resources(
                tune.with_parameters(TrialRun, payload=payload, stop_flag=stop_flag),
                partial(trial_resources, payload, spec.driver, worker_share(self._job)),
            ),
            name=TUNE,
            storage_path=location.path,
            # Tune pickles it into files of its own, which nothing reads.
            storage_filesystem=whole_files() if location.is_local else without_secrets(location),
            metric=spec.metric,
            mode=spec.mode,
            config={name: tune_domain(domain) for name, domain in setup.domains.items()},
            num_samples=num_samples,
            search_alg=searcher,
            scheduler=scheduler,
            max_failures=setup.sweep.max_failures,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            max_concurrent_trials=limit,
            raise_on_failed_trial=False,
            reuse_actors=True,
            callbacks=callbacks,
            verbose=0,
        )

    def _limit(self, scheduler: TrialScheduler, searcher: Any) -> int | None:
        given = self._setup.sweep.max_concurrent
        if given is None and not isinstance(scheduler, NEED_ALL):
            given = self._trials_at_once()
        return concurrency_limit(searcher, given)

    def _trials_at_once(self) -> int:
        """Number of trials that can train at once."""
        return max(self._slots() // self._job.min_workers, 1)

    def _limit_scheduler(self, scheduler: DeadlineScheduler, searcher: Any, record: Record) -> None:
        bounds = (self._job.min_workers, self._job.max_workers)
        max_live = concurrency_limit(searcher, self._setup.sweep.max_concurrent)
        scheduler.set_limits(self._slots(), bounds, self._job.epochs, max_live)
        values = {trial.id: [point.value for point in trial.points] for trial in record.trials.values()}
        worst = math.inf if record.mode == "min" else -math.inf
        scores = {trial: [worst if value is None else value for value in each] for trial, each in values.items()}
        scheduler.restore_scores(time.monotonic() - self._began, scores, record.mode)

    def _deadline_s(self, scheduler: TrialScheduler) -> float | None:
        if self._setup.sweep.deadline_s is not None or not isinstance(scheduler, DeadlineScheduler):
            return self._setup.sweep.deadline_s
        return float(scheduler.deadline_s)

    def _steering_callbacks(self, scheduler: TrialScheduler) -> list[tune.Callback]:
        if not self._is_steered:
            return []
        return [
            PlacementCleanup(self._name),
            WorkerAllocator(self._workers, self._slots, scheduler, self._job.min_workers),
        ]

    def _slots(self) -> int:
        return worker_capacity(self._job.resources.bundle)

    @property
    def _is_steered(self) -> bool:
        """Whether trials can be resized, through coordinators on Ray."""
        return self._setup.sweep.driver != "local"

    def _raise_if_all_failed(self, record: Record) -> None:
        errors = [trial.error for trial in record.trials.values() if trial.state == "failed"]
        if errors and len(errors) == len(record.trials):
            raise SweepFailed(
                f"every trial of sweep {self._name!r} failed ({len(errors)}). The first of them: {errors[0]}. All "
                f"errors are in {self._path}/sweep.html. Correct the job, and run the sweep again; one with a searcher "
                "under a new name.",
                name=self._name,
                errors=errors,
            )


def _record_unfinished(record: Record, stopper: SweepStopper) -> None:
    """Record trials that a stopped sweep has not finished. After an interrupt they are to be continued."""
    state: State = "stopped" if stopper.interrupted_by is None else "pending"
    for trial_id in stopper.unfinished:
        trial = record.trials[trial_id].with_state(state, record.elapsed_s)
        record.put(replace(trial, is_cut=state == "stopped"))


def _record_cut_off(record: Record, trial_ids: Iterable[str]) -> None:
    """Record trials that a deadline has stopped, which go on with the next start."""
    for trial_id in trial_ids:
        if (trial := record.trials.get(trial_id)) is not None and trial.state == "stopped":
            record.put(replace(trial, is_cut=True))


@contextmanager
def _claimed(setup: SweepSetup) -> Iterator[RunFolder]:
    storage, name = setup.spec.storage, setup.sweep.name
    folder = acquire_run_folder(storage, name) if name else acquire_new_run_folder(storage, setup.title)
    try:
        yield folder
    finally:
        folder.release()


def _check_is_within_cluster() -> None:
    """Refuse Ray Client.

    Tune would run in the cluster, with copies of the objects that observe the sweep here.
    """
    if ray.util.client.ray.is_connected():
        raise InvalidOption(
            "the sweep was started through ray://, from outside of the cluster. Run it on a node of the cluster "
            "(RAY_ADDRESS=host:port or 'auto'), or as a submitted Ray job."
        )
