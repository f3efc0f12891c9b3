"""The Ray Train driver: starts `fit()` beside it, and tells the run what its workers report."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import ray
from pyarrow.fs import FileType
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.train import WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.driver.callbacks import Callback
from forebay.driver.coordinator import Coordinator
from forebay.driver.raised import Raised
from forebay.driver.ray_session import ray_session, session_text, train_environment
from forebay.driver.ray_train import RAY_FOLDER, lost_workers_text, torch_trainer
from forebay.driver.result import Result, below
from forebay.driver.run import Run
from forebay.errors import InvalidOption, RunFailed
from forebay.job.job import Job
from forebay.storage.filesystem import resolve
from forebay.train.events import Event, Failed, Preparing, Started

log = logging.getLogger(__name__)

NAMESPACE = "forebay"
POLL_S = 0.5
FIRST_WAIT_S = 30.0
NEXT_WAIT_S = 60.0
END_S = 30.0


class RayTrainDriver:
    """`Driver` on Ray Train. One worker is one actor; blocks come from the cache actor of its node."""

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result:
        """Train `job` on Ray. Raises `RunFailed` when its train function raises, or workers die too often."""
        with Run(job, callbacks) as run:
            if run.is_finished:
                return run.result
            run.tell(Preparing(what=session_text()))
            with train_environment(), ray_session(job) as owns_ray, _coordinator(run) as coordinator:
                return _fit(run, coordinator, owns_ray)


def _fit(run: Run, coordinator: ActorHandle, owns_ray: bool) -> Result:
    run.tell(Preparing(what=f"starting {run.job.workers} workers, a process each"))
    fit = _Fit(torch_trainer(run, coordinator, owns_ray))
    try:
        _follow(run, coordinator, fit)
    except RayError as error:
        raise RunFailed(
            f"run {run.name!r} lost its connection to Ray ({type(error).__name__}). What was committed is kept: run "
            f"{run.name!r} again to continue.",
            name=run.name,
        ) from error
    finally:
        fit.end(coordinator)
        _remove_ray_folder(run)
    if fit.error is not None:
        end = _end_of(run, coordinator, fit.error)
        raise end from end.__cause__ or fit.error
    return run.finish(ray.get(coordinator.stopped.remote()))


def _follow(run: Run, coordinator: ActorHandle, fit: _Fit) -> None:
    """Tell the run what its workers report, until Ray Train has returned."""
    watch = _StartWatch(run)
    asked = False
    is_running = True
    while is_running:
        is_running = fit.is_running  # asked before the events are taken: the last ones came before the end
        for event in ray.get(coordinator.take.remote(POLL_S if is_running else 0)):
            watch.see(event)
            run.tell(event)
        if run.control.stop_reason is not None and not asked:
            ray.get(coordinator.stop.remote(run.control.stop_reason))
            asked = True
        watch.tell_if_late()


def _end_of(run: Run, coordinator: ActorHandle, error: BaseException) -> Exception:
    """What the end of `fit()` with `error` means to the user."""
    raised: Raised | None = ray.get(coordinator.raised.remote())
    if raised is not None:
        return raised.as_error(run.name)
    if isinstance(error, WorkerGroupError):
        return run.too_many_failures(lost_workers_text(error))
    return RunFailed(
        f"run {run.name!r}: Ray Train ended it with {type(error).__name__}: {error}. What was committed is kept: run "
        f"{run.name!r} again to continue.",
        name=run.name,
    )


class _Fit:
    """`trainer.fit()` in a thread of its own.

    In the main thread it would take over SIGINT for good, and answer Ctrl-C by ending the process.
    """

    def __init__(self, trainer: TorchTrainer) -> None:
        self.error: BaseException | None = None
        self._trainer = trainer
        self._thread = threading.Thread(target=self._run, name="forebay-fit", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def end(self, coordinator: ActorHandle) -> None:
        """Make a fit that is still running give up: its workers are killed, and not replaced."""
        if not self.is_running:
            return
        with suppress(RayError):
            for worker in ray.get(coordinator.end.remote()).values():
                ray.kill(worker)
        self._thread.join(END_S)
        if self.is_running:
            log.warning("Ray Train has not let go of the run's workers after %.0f s.", END_S)

    def _run(self) -> None:
        try:
            self._trainer.fit()
        except BaseException as error:  # noqa: BLE001 - it is the following thread's to judge
            self.error = error


class _StartWatch:
    """Says so when workers are long in coming: most often the cluster has no room for them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._is_training = False
        self._due = time.monotonic() + FIRST_WAIT_S

    def see(self, event: Event) -> None:
        if isinstance(event, Started | Failed):
            self._is_training = isinstance(event, Started)
            self._due = time.monotonic() + FIRST_WAIT_S

    def tell_if_late(self) -> None:
        if self._is_training or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + NEXT_WAIT_S
        job, free = self._run.job, ray.available_resources()
        asked = f"{job.workers} workers of {job.resources.cpus:g} CPUs and {job.resources.gpus:g} GPUs"
        left = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free in the cluster"
        self._run.tell(Preparing(what=f"still waiting for {asked}; {left}"))


def _remove_ray_folder(run: Run) -> None:
    """Ray Train needs a folder for checkpoints, of which Forebay makes none there."""
    folder = resolve(below(run.path, RAY_FOLDER))
    if folder.fs.get_file_info(folder.path).type == FileType.Directory:
        folder.fs.delete_dir(folder.path)


@contextmanager
def _coordinator(run: Run) -> Iterator[ActorHandle]:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    placed = ray.remote(Coordinator).options(
        name=f"run-{run.name}", namespace=NAMESPACE, num_cpus=0, scheduling_strategy=here
    )
    try:
        coordinator = placed.remote(run.job.workers)
    except ValueError as error:
        raise InvalidOption(
            f"a run named {run.name!r} is under way on this cluster. Wait for its end, or give this one another name.",
            name=run.name,
        ) from error
    try:
        yield coordinator
    finally:
        ray.kill(coordinator)
