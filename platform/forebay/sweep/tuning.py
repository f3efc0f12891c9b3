"""Ray Tune as Forebay uses it: every trial a nested run, nothing printed, and nobody ended without a commit.

What goes beyond Tune's documented surface is in this file, checked on Ray 2.60: `Trial.handle_error` and
`Trial.max_failures` (an exception of a job is no reason to try again, a lost process is). tests/ray/sweep fails when
one of them moves.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from types import FrameType
from typing import Any

from pyarrow.fs import FileSelector
from ray import tune
from ray.exceptions import RayActorError, RayTaskError
from ray.tune import PlacementGroupFactory, ResumeConfig
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, SearchAlgorithm, Searcher, create_searcher

from forebay.driver.claim import Claim, claim, claim_new
from forebay.driver.ray_session import ray_session, train_environment
from forebay.errors import InvalidOption, SweepFailed
from forebay.job.job import Job
from forebay.storage.filesystem import resolve
from forebay.sweep.allotting import Allotting
from forebay.sweep.bell import hung_up_bell
from forebay.sweep.board import open_board
from forebay.sweep.ending import Ending, Interrupted
from forebay.sweep.live import showing
from forebay.sweep.page import write_page
from forebay.sweep.record import Record
from forebay.sweep.record_file import load_record
from forebay.sweep.recorder import Recorder
from forebay.sweep.result import SweepResult
from forebay.sweep.run_names import TUNE
from forebay.sweep.scheduler import DeadlineScheduler
from forebay.sweep.space import Choice, Domain, Foreign, Grid, Uniform, WholeNumbers
from forebay.sweep.sweep import Sweep
from forebay.sweep.task import pack, unpack
from forebay.sweep.trial import TrialRun
from forebay.sweep.trial_workers import RayTrialWorkers, cluster_atoms

NO_CPU = {"CPU": 0, "memory": 1 << 20}
"""What a trial's own process asks for: nothing would be refused, and Tune's default is a CPU."""
# They compare trials that have come equally far, so all of a round have to get there: none may wait for others' end.
NEED_ALL = (HyperBandScheduler, HyperBandForBOHB, PopulationBasedTraining)
SEEDED = ("optuna", "bohb")
EXCHANGE = (PopulationBasedTraining, PopulationBasedTrainingReplay)

TUNE_ENVIRONMENT: Mapping[str, str] = {
    # The record is what a sweep writes; Tune's loggers write three files per trial beside it.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ctrl-C lets all trials commit first, which takes longer than Tune waits.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Tune's own tables; `live.py` shows ours.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # 10 s by default: what a driver that is killed forgets of its trials.
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
    # Recorder and allotment are called at every turn.
    "TUNE_WARN_THRESHOLD_S": "10",
}
LOGGERS = ("ray.tune", "ray.air", "ray.train")


def tune_sweep(sweep: Sweep, job: Job, *, show: bool) -> SweepResult:
    """Run `sweep`, of which `job` is a possible trial's job; see `Sweep.run`."""
    scheduler = _scheduler(sweep, job)
    searcher = _searcher(sweep)
    with _claimed(sweep) as held, _quiet(), train_environment(), _tune_environment(), ray_session(job):
        return _Tuning(sweep, job, held).run(scheduler, searcher, show=show)


class _Tuning:
    """One start of a sweep, whose folder is held."""

    def __init__(self, sweep: Sweep, job: Job, held: Claim) -> None:
        self._sweep, self._job = sweep, job
        self._name, self._path = held.name, held.path
        self._workers = RayTrialWorkers(self._name)

    def run(self, scheduler: TrialScheduler, searcher: Any, *, show: bool) -> SweepResult:
        deadline_s = self._deadline_s(scheduler)
        record, ending = self._record(deadline_s), Ending(deadline_s)
        if isinstance(scheduler, DeadlineScheduler):
            self._prepare(scheduler, record)
        with ExitStack() as stack:
            bell = stack.enter_context(hung_up_bell())
            board = stack.enter_context(open_board(record, self._path))
            live = stack.enter_context(showing(show))
            held = self._workers.held if self._is_steered else None
            recorder = Recorder(record, self._path, held=held, tells=(board.show, live))
            ending.listen(bell, lambda: board.stop_reason)
            stack.enter_context(_interrupts(ending.interrupt))
            stack.enter_context(_jobs_fail_once())
            try:
                self._tune(scheduler, searcher, ending, [*self._allotting(scheduler), recorder, ending], bell)
            except Interrupted:
                for trial_id in ending.unfinished:
                    record.put(record.trials[trial_id].entered("pending", record.elapsed_s))
                raise KeyboardInterrupt from None
            finally:
                recorder.close(ending.reason)
                live(record)
                write_page(record, self._path)
        self._check_any_left(record)
        return SweepResult.of(record, self._path)

    def _tune(self, scheduler: TrialScheduler, searcher: Any, ending: Ending, callbacks: list[Any], bell: Any) -> None:
        sweep = self._sweep
        place = resolve(self._path)
        task = sweep.task(self._name, exchanges=isinstance(scheduler, EXCHANGE))
        payload = pack(task)
        limit = self._limit(scheduler)
        if isinstance(searcher, BasicVariantGenerator) and sweep.searcher in (None, "random"):
            # A `DeadlineScheduler` admits trials itself, and counts on knowing all that are to come.
            searcher.max_concurrent = 0 if isinstance(scheduler, DeadlineScheduler) else limit or 0
        limits_itself = isinstance(searcher, BasicVariantGenerator | ConcurrencyLimiter)
        tune.run(
            tune.with_resources(
                tune.with_parameters(TrialRun, payload=payload, bell=bell), partial(_resources, payload, sweep.driver)
            ),
            name=TUNE,
            storage_path=place.path,
            storage_filesystem=place.fs,
            metric=sweep.metric,
            mode=sweep.mode,
            config={name: _tune_domain(domain) for name, domain in sweep.domains().items()},
            num_samples=_num_samples(sweep),
            search_alg=searcher,
            scheduler=scheduler,
            stop=ending.stopper,
            max_failures=sweep.max_failures,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            max_concurrent_trials=None if limits_itself else limit,
            resume_config=ResumeConfig() if _has_begun(place.fs, f"{place.path}/{TUNE}") else None,
            raise_on_failed_trial=False,
            callbacks=callbacks,
            verbose=0,
        )

    def _limit(self, scheduler: TrialScheduler) -> int | None:
        if self._sweep.max_concurrent is not None:
            return self._sweep.max_concurrent
        return None if isinstance(scheduler, NEED_ALL) else max(self._atoms() // self._job.min_workers, 1)

    def _prepare(self, scheduler: DeadlineScheduler, record: Record) -> None:
        bounds = (self._job.min_workers, self._job.max_workers)
        scheduler.prepare(self._atoms(), bounds, self._job.epochs)
        values = {trial.id: [point.value for point in trial.points] for trial in record.trials.values()}
        worst = math.inf if record.mode == "min" else -math.inf
        scheduler.recall(0.0, {trial: [worst if v is None else v for v in each] for trial, each in values.items()})

    def _deadline_s(self, scheduler: TrialScheduler) -> float | None:
        if self._sweep.deadline_s is not None or not isinstance(scheduler, DeadlineScheduler):
            return self._sweep.deadline_s
        return float(scheduler.deadline_s)

    def _allotting(self, scheduler: TrialScheduler) -> list[Allotting]:
        if not self._is_steered:
            return []
        return [Allotting(self._workers, self._atoms, scheduler, self._job.min_workers)]

    def _atoms(self) -> int:
        return cluster_atoms(self._job)

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
        record.deadline_s, record.slots = deadline_s, self._atoms()
        record.log_axes = [name for name, domain in sweep.domains().items() if _is_log(domain)]
        return record

    def _check_any_left(self, record: Record) -> None:
        errors = [trial.error for trial in record.trials.values() if trial.state == "failed"]
        if errors and len(errors) == len(record.trials):
            raise SweepFailed(
                f"every trial of sweep {self._name!r} failed ({len(errors)}). The first of them: {errors[0]}. All "
                f"errors are in {self._path}/sweep.html. Correct the job, and give the sweep a new name.",
                name=self._name,
                errors=errors,
            )


def _scheduler(sweep: Sweep, job: Job) -> TrialScheduler:
    if sweep.scheduler is not None:
        if not isinstance(sweep.scheduler, TrialScheduler):
            raise InvalidOption(f"scheduler={sweep.scheduler!r} is none of ray.tune.schedulers. Give one, or None.")
        return sweep.scheduler
    if sweep.searcher == "bohb":
        return HyperBandForBOHB(time_attr="training_iteration", max_t=max(job.epochs, 2))
    return FIFOScheduler() if sweep.deadline_s is None else DeadlineScheduler(sweep.deadline_s)


def _searcher(sweep: Sweep) -> Any:
    given = sweep.searcher
    if given is None or given == "random":
        return BasicVariantGenerator(random_state=sweep.seed)
    if not isinstance(given, str):
        if not isinstance(given, Searcher | SearchAlgorithm):
            raise InvalidOption(f"searcher={given!r} is none of ray.tune.search. Give one, the name of one, or None.")
        return given
    try:
        return create_searcher(given, **({"seed": sweep.seed} if given in SEEDED else {}))
    except (ImportError, AssertionError) as error:
        raise InvalidOption(
            f"searcher={given!r} needs packages that are not installed ({error}). Install them, or leave searcher out "
            "to draw at random.",
            searcher=given,
        ) from error
    except ValueError as error:
        raise InvalidOption(f"searcher={given!r} is unknown to Ray Tune: {error}", searcher=given) from error


def _num_samples(sweep: Sweep) -> int:
    size = math.prod(len(domain.values) for domain in sweep.domains().values() if isinstance(domain, Grid))
    return max(sweep.num_trials // size, 1)


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
        case Foreign():
            return domain.domain


def _is_log(domain: Domain) -> bool:
    return isinstance(domain, Foreign) and "Log" in type(getattr(domain.domain, "sampler", None)).__name__


def _resources(payload: bytes, driver: str, config: Mapping[str, Any]) -> PlacementGroupFactory:
    """What a trial's actor asks for: the workers' share only where they are its own process and its children."""
    if driver != "local":
        return PlacementGroupFactory([dict(NO_CPU)])
    job = _unpacked(payload).job(config)
    workers, each = job.min_workers, job.resources
    return PlacementGroupFactory([{**NO_CPU, "CPU": workers * each.cpus, "GPU": workers * each.gpus}])


@cache
def _unpacked(payload: bytes) -> Any:
    return unpack(payload)


def _has_begun(fs: Any, folder: str) -> bool:
    found = fs.get_file_info(FileSelector(folder, allow_not_found=True))
    return any(info.base_name.startswith("experiment_state-") for info in found)


@contextmanager
def _claimed(sweep: Sweep) -> Iterator[Claim]:
    held = claim(sweep.storage, sweep.name) if sweep.name else claim_new(sweep.storage, sweep.title)
    try:
        yield held
    finally:
        held.release()


@contextmanager
def _tune_environment() -> Iterator[None]:
    missing = {name: value for name, value in TUNE_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """What goes wrong is in the record, or raised."""
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _interrupts(interrupt: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C asks for an end, the second one is as ever. Tune takes SIGUSR1 for its own: it is put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - Python's signature
        signal.signal(signal.SIGINT, kept[signal.SIGINT])
        interrupt()

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        for number, was in kept.items():
            signal.signal(number, was)


@contextmanager
def _jobs_fail_once() -> Iterator[None]:
    """Let `max_failures` count lost processes alone: an exception of a job would be raised again."""
    handle_error = Trial.handle_error

    def handle(trial: Trial, exc: Exception | None = None) -> None:
        handle_error(trial, exc)
        if isinstance(exc, RayTaskError) and not isinstance(exc.as_instanceof_cause(), RayActorError):
            trial.max_failures = 0

    Trial.handle_error = handle
    try:
        yield
    finally:
        Trial.handle_error = handle_error
