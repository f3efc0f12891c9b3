"""Ray Tune as Forebay uses it: every trial a nested run, nothing printed, and nobody ended without a commit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import ray
from ray import tune
from ray.tune import PlacementGroupFactory, ResumeConfig
from ray.tune.schedulers import (
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator

from forebay.errors import InvalidOption, SweepFailed
from forebay.job.job import Job
from forebay.ray_cluster.nodes import worker_capacity
from forebay.ray_cluster.session import ray_session, train_environment
from forebay.runs.run_folder import RunFolder, claim, claim_new
from forebay.storage.filesystem import resolve
from forebay.sweep.deadline.allocator import WorkerAllocator
from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.deadline.trial_workers import RayTrialWorkers
from forebay.sweep.largest_job import check_greatest, greatest_job
from forebay.sweep.layout import TUNE
from forebay.sweep.record.backfill import fill_in
from forebay.sweep.record.record import Record, State, load_record
from forebay.sweep.record.recorder import SweepRecorder
from forebay.sweep.record.status_actor import open_board
from forebay.sweep.report.live import showing
from forebay.sweep.report.page import write_page
from forebay.sweep.result import SweepResult
from forebay.sweep.space import Choice, Domain, Grid, TuneDomain, Uniform, WholeNumbers
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial.trainable import TrialRun
from forebay.sweep.trial_spec import TrialSpec, pack, unpack
from forebay.sweep.tune.cleanup import PlacementCleanup
from forebay.sweep.tune.filesystems import whole_files, without_secrets
from forebay.sweep.tune.resume import Restored, trials_of_before
from forebay.sweep.tune.search import check_population, limit_trials, most_at_once, scheduler_of, searcher_of
from forebay.sweep.tune.settings import Silent, interrupts, tune_settings
from forebay.sweep.tune.stopper import SweepStopped, SweepStopper, hung_up_bell

_TASKS: dict[bytes, TrialSpec] = {}
"""What was packed in this process, by what it was packed into."""
NO_CPU = {"CPU": 0, "memory": 1 << 20}
"""What a trial's own process asks for: nothing would be refused, and Tune's default is a CPU."""
# They compare trials that have come equally far, so all of a round have to get there: none may wait for others' end.
NEED_ALL = (HyperBandScheduler, HyperBandForBOHB, PopulationBasedTraining)
EXCHANGE = (PopulationBasedTraining, PopulationBasedTrainingReplay)


def tune_sweep(sweep: Sweep, job: Job, *, show: bool, began: float) -> SweepResult:
    """Run `sweep`, of which `job` is a possible trial's job; see `Sweep.run`, which began at `began`, monotonic."""
    scheduler, searcher = scheduler_of(sweep, job), searcher_of(sweep)
    greatest = greatest_job(sweep, job)
    with _claimed(sweep) as held, tune_settings(), train_environment(), ray_session(greatest.max_cpus):
        _check_is_within_cluster()
        check_greatest(greatest)
        return _Tuning(sweep, job, held, began).run(scheduler, searcher, show=show)


class _Tuning:
    """One start of a sweep, whose folder is held."""

    def __init__(self, sweep: Sweep, job: Job, held: RunFolder, began: float) -> None:
        self._sweep, self._job, self._began = sweep, job, began
        self._name, self._path = held.name, held.path
        self._workers = RayTrialWorkers(self._name)

    def run(self, scheduler: TrialScheduler, searcher: Any, *, show: bool) -> SweepResult:
        deadline_s = self._deadline_s(scheduler)
        record, ending = self._record(deadline_s), SweepStopper(deadline_s, self._began)
        known = trials_of_before(self._path, record)
        check_population(
            scheduler,
            _num_samples(self._sweep) * self._sweep.grid_size,
            slots=self._slots() if self._is_steered else None,
            most=most_at_once(searcher, self._sweep.max_concurrent),
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
                restored = Restored(known or frozenset(), self._path, self._sweep.max_failures)
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
        sweep = self._sweep
        place = resolve(self._path)
        task = sweep.task(self._name, exchanges=isinstance(scheduler, EXCHANGE))
        payload = pack(task)
        _TASKS.clear()
        _TASKS[payload] = task
        limit = limit_trials(searcher, scheduler, self._limit(scheduler, searcher))
        tune.run(
            tune.with_resources(
                tune.with_parameters(TrialRun, payload=payload, bell=bell),
                partial(_resources, payload, sweep.driver, _share(self._job)),
            ),
            name=TUNE,
            storage_path=place.path,
            # Tune pickles it into the files that a sweep goes on from.
            storage_filesystem=whole_files() if place.is_local else without_secrets(place),
            metric=sweep.metric,
            mode=sweep.mode,
            config={name: _tune_domain(domain) for name, domain in sweep.domains().items()},
            num_samples=_num_samples(sweep),
            search_alg=searcher,
            scheduler=scheduler,
            max_failures=sweep.max_failures,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            max_concurrent_trials=limit,
            resume_config=_resume_config(searcher) if is_restart else None,
            raise_on_failed_trial=False,
            reuse_actors=True,
            callbacks=callbacks,
            verbose=0,
        )

    def _limit(self, scheduler: TrialScheduler, searcher: Any) -> int | None:
        given = self._sweep.max_concurrent
        if given is None and not isinstance(scheduler, NEED_ALL):
            given = self._slots()
        return most_at_once(searcher, given)

    def _slots(self) -> int:
        """How many trials can train at a time."""
        return max(self._atoms() // self._job.min_workers, 1)

    def _prepare(self, scheduler: DeadlineScheduler, searcher: Any, record: Record) -> None:
        bounds = (self._job.min_workers, self._job.max_workers)
        max_live = most_at_once(searcher, self._sweep.max_concurrent)
        scheduler.prepare(self._atoms(), bounds, self._job.epochs, max_live)
        values = {trial.id: [point.value for point in trial.points] for trial in record.trials.values()}
        worst = math.inf if record.mode == "min" else -math.inf
        told = {trial: [worst if value is None else value for value in each] for trial, each in values.items()}
        scheduler.recall(time.monotonic() - self._began, told, record.mode)

    def _deadline_s(self, scheduler: TrialScheduler) -> float | None:
        if self._sweep.deadline_s is not None or not isinstance(scheduler, DeadlineScheduler):
            return self._sweep.deadline_s
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
        return self._sweep.driver != "local"

    def _record(self, deadline_s: float | None) -> Record:
        sweep = self._sweep
        record = load_record(self._path) or Record(name=self._name, metric=sweep.metric, mode=sweep.mode)
        if (record.metric, record.mode) != (sweep.metric, sweep.mode):
            raise InvalidOption(
                f"the sweep {self._name!r} was for the {record.mode} of {record.metric!r}; this one is for the "
                f"{sweep.mode} of {sweep.metric!r}. Give it another name.",
                name=self._name,
            )
        fill_in(record, self._path)
        _check_same(record, sweep)
        record.space, record.num_trials = sweep.space_texts(), sweep.num_trials
        record.deadline_s, record.slots = deadline_s, self._atoms()
        record.log_axes = [name for name, domain in sweep.domains().items() if _is_log(domain)]
        return record

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


def _num_samples(sweep: Sweep) -> int:
    return max(sweep.num_trials // sweep.grid_size, 1)


def _check_same(record: Record, sweep: Sweep) -> None:
    """Tune goes on with what it drew from before, whatever it is given: raises `InvalidOption` for anything else."""
    now: dict[str, object] = {**sweep.space_texts(), "num_trials": sweep.num_trials}
    was: dict[str, object] = {**record.space, "num_trials": record.num_trials}
    changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    if record.trials and record.space and changed:
        raise InvalidOption(
            f"the sweep {record.name!r} has begun with {changed[0]}={was.get(changed[0], 'nothing')}; this one has "
            f"{now.get(changed[0], 'nothing')}. Give it another name, or run it as it was.",
            name=record.name,
            changed=changed,
        )


def _resume_config(searcher: Any) -> ResumeConfig:
    """All that have not ended go on, and what failed is tried again; other searchers were told of a failure for good.

    Their own books would be closed for such a trial: the first result would raise in the middle of the sweep.
    """
    types = ResumeConfig.ResumeType
    return ResumeConfig(errored=types.RESUME if isinstance(searcher, BasicVariantGenerator) else types.SKIP)


def _tune_domain(domain: Domain) -> Any:
    match domain:
        case Uniform():
            return tune.uniform(domain.low, domain.high)
        case WholeNumbers():
            return tune.randint(domain.low, domain.high + 1)
        case Choice():
            return tune.choice(list(domain.values))
        case Grid():
            return tune.grid_search(list(domain.values))
        case TuneDomain():
            return domain.domain


def _is_log(domain: Domain) -> bool:
    return isinstance(domain, TuneDomain) and "Log" in type(getattr(domain.domain, "sampler", None)).__name__


def _resources(
    payload: bytes, driver: str, otherwise: Mapping[str, float], config: Mapping[str, Any]
) -> PlacementGroupFactory:
    """What a trial's actor asks for: the workers' share only where they are its own process and its children.

    A job function that raises is the failure of its trial, which has to start for that: with `otherwise`.
    """
    if driver != "local":
        return PlacementGroupFactory([dict(NO_CPU)])
    try:
        share = _share(_unpacked(payload).job(config))
    except Exception:  # noqa: BLE001 - what a job function raises
        share = otherwise
    return PlacementGroupFactory([{**NO_CPU, **share}])


def _share(job: Job) -> Mapping[str, float]:
    return {"CPU": job.min_workers * job.resources.cpus, "GPU": job.min_workers * job.resources.gpus}


def _unpacked(payload: bytes) -> TrialSpec:
    # What is unpickled in the process that pickled it puts its methods, cut down, into the user's own classes.
    return _TASKS.get(payload) or unpack(payload)


@contextmanager
def _claimed(sweep: Sweep) -> Iterator[RunFolder]:
    held = claim(sweep.storage, sweep.name) if sweep.name else claim_new(sweep.storage, sweep.title)
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
