"""The Ray Train driver: starts `fit()` beside it, and tells the run what its workers report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

import ray
from pyarrow.fs import FileType
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.train import WorkerGroupError
from ray.train.torch import TorchTrainer

from forebay.checkpoint.ray_store import checkpoint_stores
from forebay.driver.elastic.coordinator_actor import coordinator_of
from forebay.driver.elastic.event_loop import follow
from forebay.driver.ray_train.trainer import RAY_FOLDER, lost_workers_text, torch_trainer
from forebay.driver.worker_error import WorkerError
from forebay.errors import RunFailed
from forebay.events import Preparing
from forebay.job.job import Job
from forebay.ray_cluster.placement import remove_places
from forebay.ray_cluster.session import ray_session, session_text, train_environment
from forebay.runs.callback import Callback
from forebay.runs.result import Result
from forebay.runs.run import Run
from forebay.storage.filesystem import below, resolve

log = logging.getLogger(__name__)

END_S = 30.0


class RayTrainDriver:
    """`Driver` on Ray Train. One worker is one actor; blocks come from the cache actor of its node."""

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result:
        """Train `job` on Ray. Raises `RunFailed` when its train function raises, or workers die too often."""
        with Run(job, callbacks) as run:
            if run.is_finished:
                return run.result
            run.tell(Preparing(what=session_text()))
            with (
                train_environment(),
                ray_session(job.max_cpus),
                coordinator_of(run, "ray") as coordinator,
                checkpoint_stores(run.name),
            ):
                return _fit(run, coordinator)


def _fit(run: Run, coordinator: ActorHandle) -> Result:
    run.tell(Preparing(what=f"starting {run.job.start_workers} workers, a process each"))
    fit = _Fit(torch_trainer(run, coordinator))
    try:
        stopped = follow(run, coordinator, lambda: fit.is_running)
    except RayError as error:
        raise RunFailed(
            f"run {run.name!r} lost its connection to Ray ({type(error).__name__}). What was committed is kept: run "
            f"{run.name!r} again to continue.",
            name=run.name,
        ) from error
    finally:
        fit.end(coordinator)
        _clear_away(run)
    if stopped is not None:
        return run.finish(stopped)
    if fit.error is not None:
        end = _end_of(run, coordinator, fit.error)
        raise end from end.__cause__ or fit.error
    return run.finish(ray.get(coordinator.stopped.remote()))


def _end_of(run: Run, coordinator: ActorHandle, error: BaseException) -> Exception:
    """What the end of `fit()` with `error` means to the user."""
    raised: WorkerError | None = ray.get(coordinator.raised.remote())
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


def _clear_away(run: Run) -> None:
    """Remove what Ray Train leaves behind. How the run ended is more important than what cannot be removed."""
    try:
        remove_places(lambda name: name == run.name)
    except (RayError, OSError) as error:
        log.warning("The places of the workers of run %r could not be removed from the cluster: %s", run.name, error)
    try:
        _remove_ray_folder(run)
    except OSError as error:
        log.warning("Ray Train's folder of run %r could not be removed: %s", run.name, error)


def _remove_ray_folder(run: Run) -> None:
    """Ray Train needs a folder for checkpoints, of which Forebay makes none there."""
    folder = resolve(below(run.path, RAY_FOLDER))
    if folder.fs.get_file_info(folder.path).type == FileType.Directory:
        folder.fs.delete_dir(folder.path)
