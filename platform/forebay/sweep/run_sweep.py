"""Ray Tune as Forebay uses it: every trial a nested run, nothing printed, and nobody ended without a commit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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

from forebay.errors import InvalidOption, SweepFailed
from forebay.ray_cluster.nodes import worker_capacity
from forebay.ray_cluster.session import ray_session, train_environment
from forebay.runs.run_folder import RunFolder, claim, claim_new
from forebay.storage.filesystem import resolve
from forebay.sweep.deadline.allocator import WorkerAllocator
from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.deadline.trial_workers import RayTrialWorkers
from forebay.sweep.largest_job import check_greatest, greatest_job
from forebay.sweep.layout import TUNE
from forebay.sweep.record.record import Record, State
from forebay.sweep.record.recorder import SweepRecorder
from forebay.sweep.record.status_actor import open_board
from forebay.sweep.report.live import showing
from forebay.sweep.report.page import write_page
from forebay.sweep.result import SweepResult
from forebay.sweep.setup import SweepSetup, prepare
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial.trainable import TrialRun
from forebay.sweep.tune.cleanup import PlacementCleanup
from forebay.sweep.tune.filesystems import whole_files, without_secrets
from forebay.sweep.tune.resources import pack_here, trial_resources, worker_share
from forebay.sweep.tune.resume import Restored, open_record, resume_config, trials_of_before
from forebay.sweep.tune.search import (
    check_population,
    limit_trials,
    most_at_once,
    scheduler_of,
    searcher_of,
    tune_domain,
)
from forebay.sweep.tune.settings import Silent, interrupts, tune_settings
from forebay.sweep.tune.stopper import SweepStopped, SweepStopper, hung_up_bell

# They compare trials that have come equally far, so all of a round have to get there: none may wait for others' end.
NEED_ALL = (HyperBandScheduler, HyperBandForBOHB, PopulationBasedTraining)
EXCHANGE = (PopulationBasedTraining, PopulationBasedTrainingReplay)


def run_sweep(sweep: Sweep, show: bool = True) -> SweepResult:
    """Run the trials of `sweep`, or go on with them; `show` keeps a table of them up to date.

    Everything that can be known is checked before a trial starts. Ctrl-C, `forebay stop` and the deadline let all
    trials commit and end first; the same name goes on from there.

    Raises:
        BadJob: A name that is not a parameter, one that is missing, or values of another type than the parameter's.
        InvalidOption: A space, scheduler, searcher or driver that cannot work, or a sweep that is under way.
        SweepFailed: Every trial failed, or what Ray Tune noted in an earlier start is lost.
    """
    began = time.monotonic()
    setup = prepare(sweep)
    scheduler, searcher = scheduler_of(setup), searcher_of(setup)
    greatest = greatest_job(setup)
    with _claimed(setup) as held, tune_settings(), train_environment(), ray_session(greatest.max_cpus):
        _check_is_within_cluster()
        check_greatest(greatest)
        return _Tuning(setup, held, began).run(scheduler, searcher, show=show)


class _Tuning:
    """One start of a sweep, whose folder is held."""

    def __init__(self, setup: SweepSetup, held: RunFolder, began: float) -> None:
        self._setup, self._job, self._began = setup, setup.job, began
        self._name, self._path = held.name, held.path
        self._workers = RayTrialWorkers(self._name)

    def run(self, scheduler: TrialScheduler, searcher: Any, *, show: bool) -> SweepResult:
        deadline_s = self._deadline_s(scheduler)
        record, ending = open_record(self._setup, self._name, self._path), SweepStopper(deadline_s, self._began)
        record.deadline_s, record.slots = deadline_s, self._atoms()
        known = trials_of_before(self._path, record)
        check_population(
            scheduler,
            self._setup.num_rounds * self._setup.grid_size,
            slots=self._slots() if self._is_steered else None,
            most=most_at_once(searcher, self._setup.max_concurrent),
        )
        if isinstance(scheduler, DeadlineScheduler):
            self._prepare(scheduler, searcher, record)
        with ExitStack() as stack:
            bell = stack.enter_context(hung_up_bell())
            board = stack.enter_context(open_board(record, self._path))
            live = stack.enter_context(showing(show))
            held = self._workers.lately_held if self._is_steered else None
            recorder = SweepRecorder(record, self._path, self._began, held=held, tells=(board.show, live))
            ending.listen(bell, lambda: board.stop_reason)
            stack.enter_context(interrupts(ending.interrupt))
            try:
                # Last, because it may end the sweep.
                restored = Restored(known or frozenset(), self._path, self._setup.max_failures)
                callbacks = [restored, *self._steering(scheduler), recorder, Silent(), ending]
                self._tune(scheduler, searcher, callbacks, bell, is_restart=known is not None)
            except SweepStopped:
                state: State = "pending" if ending.is_interrupted else "stopped"
                for trial_id in ending.unfinished:
                    record.put(record.trials[trial_id].entered(state, record.elapsed_s))
                if ending.is_interrupted:
                    raise KeyboardInterrupt from None
            finally:
                recorder.close(ending.reason or getattr(scheduler, "stopped", None))
                live(record)
                write_page(record, self._path)
        self._check_any_left(record)
        return SweepResult.of(record, self._path)

    def _tune(
        self, scheduler: TrialScheduler, searcher: Any, callbacks: list[Any], bell: Any, *, is_restart: bool
    ) -> None:
        place, setup = resolve(self._path), self._setup
        spec = setup.trial_spec(self._name, exchanges=isinstance(scheduler, EXCHANGE))
        payload = pack_here(spec)
        limit = limit_trials(searcher, scheduler, self._limit(scheduler, searcher))
        tune.run(
            tune.with_resources(
                tune.with_parameters(TrialRun, payload=payload, bell=bell),
                partial(trial_resources, payload, spec.driver, worker_share(self._job)),
            ),
            name=TUNE,
            storage_path=place.path,
            # Tune pickles it into the files that a sweep goes on from.
            storage_filesystem=whole_files() if place.is_local else without_secrets(place),
            metric=spec.metric,
            mode=spec.mode,
            config={name: tune_domain(domain) for name, domain in setup.domains.items()},
            num_samples=setup.num_rounds,
            search_alg=searcher,
            scheduler=scheduler,
            max_failures=setup.max_failures,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            max_concurrent_trials=limit,
            resume_config=resume_config(searcher) if is_restart else None,
            raise_on_failed_trial=False,
            reuse_actors=True,
            callbacks=callbacks,
            verbose=0,
        )

    def _limit(self, scheduler: TrialScheduler, searcher: Any) -> int | None:
        given = self._setup.max_concurrent
        if given is None and not isinstance(scheduler, NEED_ALL):
            given = self._slots()
        return most_at_once(searcher, given)

    def _slots(self) -> int:
        """How many trials can train at a time."""
        return max(self._atoms() // self._job.min_workers, 1)

    def _prepare(self, scheduler: DeadlineScheduler, searcher: Any, record: Record) -> None:
        bounds = (self._job.min_workers, self._job.max_workers)
        max_live = most_at_once(searcher, self._setup.max_concurrent)
        scheduler.prepare(self._atoms(), bounds, self._job.epochs, max_live)
        values = {trial.id: [point.value for point in trial.points] for trial in record.trials.values()}
        worst = math.inf if record.mode == "min" else -math.inf
        told = {trial: [worst if value is None else value for value in each] for trial, each in values.items()}
        scheduler.recall(time.monotonic() - self._began, told, record.mode)

    def _deadline_s(self, scheduler: TrialScheduler) -> float | None:
        if self._setup.deadline_s is not None or not isinstance(scheduler, DeadlineScheduler):
            return self._setup.deadline_s
        return float(scheduler.deadline_s)

    def _steering(self, scheduler: TrialScheduler) -> list[tune.Callback]:
        if not self._is_steered:
            return []
        return [
            PlacementCleanup(self._name),
            WorkerAllocator(self._workers, self._atoms, scheduler, self._job.min_workers),
        ]

    def _atoms(self) -> int:
        return worker_capacity(cpus=self._job.resources.cpus, gpus=self._job.resources.gpus)

    @property
    def _is_steered(self) -> bool:
        """Whether trials are reached, and resized, through coordinators on Ray."""
        return self._setup.spec.driver != "local"

    def _check_any_left(self, record: Record) -> None:
        errors = [trial.error for trial in record.trials.values() if trial.state == "failed"]
        if errors and len(errors) == len(record.trials):
            raise SweepFailed(
                f"every trial of sweep {self._name!r} failed ({len(errors)}). The first of them: {errors[0]}. All "
                f"errors are in {self._path}/sweep.html. Correct the job, and run the sweep again; one with a searcher "
                "under a new name.",
                name=self._name,
                errors=errors,
            )


@contextmanager
def _claimed(setup: SweepSetup) -> Iterator[RunFolder]:
    storage = setup.spec.storage
    held = claim(storage, setup.name) if setup.name else claim_new(storage, setup.title)
    try:
        yield held
    finally:
        held.release()


def _check_is_within_cluster() -> None:
    """Tune would run in the cluster, with copies of what looks after the sweep here."""
    if ray.util.client.ray.is_connected():
        raise InvalidOption(
            "the sweep was started through ray://, from outside of the cluster. Run it on a node of the cluster "
            "(RAY_ADDRESS=host:port or 'auto'), or as a submitted Ray job."
        )
