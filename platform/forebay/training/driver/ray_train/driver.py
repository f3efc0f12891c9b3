"""Ray Train driver: the elastic core around a `TorchTrainer`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import ray
from pyarrow.fs import FileType
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig

from forebay.data.cache.node.client import nodes_with_caches
from forebay.events import Preparing
from forebay.ray_cluster.nodes import gpus_of_cluster, remove_placements
from forebay.ray_cluster.session import ray_session, session_text, train_environment
from forebay.storage.filesystem import below, resolve
from forebay.training.collectives.torch_collective import MEET_S, backend_of
from forebay.training.driver.elastic.elastic_driver import Trainer, train_elastic
from forebay.training.driver.ray_train.trainer import ControllerConfig, ForebayTrainer
from forebay.training.driver.ray_train.worker import train_loop
from forebay.training.job.job import Job
from forebay.training.runs.control import Callback
from forebay.training.runs.result import Result
from forebay.training.runs.run import Run
from forebay.training.runs.worker_spec import pack

RAY_FOLDER = "ray"
"""Folder below the run's folder. Ray Train requires one for checkpoints. Forebay saves none there."""

log = logging.getLogger(__name__)


class RayTrainDriver:
    """`Driver` on Ray Train.

    Each worker is an actor. Blocks come from the cache actor of its node.
    """

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result:
        """Train `job` on Ray.

        Raises `RunFailed` when its train function raises, or workers die too often.
        """
        with Run(job, callbacks) as run:
            if run.is_finished:
                return run.result
            run.tell(Preparing(what=session_text()))
            with train_environment(job.max_workers), ray_session(job.max_cpus) as is_ours:
                run.settle(gpus_of_cluster(grows=not is_ours))
                return train_elastic(run, "ray", _open_backend)


def _torch_trainer(run: Run, coordinator: ActorHandle) -> ForebayTrainer:
    """Trainer of `run`, ready for `fit()`."""
    job = run.job
    folder = resolve(run.path)
    payload = ray.put(pack(replace(run.worker_spec, nodes=nodes_with_caches(job.cache))))
    return ForebayTrainer(
        train_loop,
        controller=ControllerConfig(
            coordinator=coordinator, payload=payload, min_workers=job.min_workers, run=run.name
        ),
        train_loop_config={"coordinator": coordinator, "payload": payload},
        torch_config=TorchConfig(
            backend=backend_of("cuda" if job.resources.gpus else "cpu"), timeout_s=max(job.hang_timeout_s, MEET_S)
        ),
        scaling_config=ScalingConfig(
            num_workers=job.max_workers,
            use_gpu=bool(job.resources.gpus),
            resources_per_worker=job.resources.bundle,
        ),
        run_config=RunConfig(
            name=RAY_FOLDER,
            storage_path=folder.path,
            storage_filesystem=folder.fs,
            failure_config=FailureConfig(max_failures=job.max_failures),
            # Failures are raised or reported as events. Ray's own log files keep the rest.
            logging_config=LoggingConfig(log_level="CRITICAL"),
        ),
    )


@contextmanager
def _open_backend(run: Run, coordinator: ActorHandle) -> Iterator[Trainer]:
    try:
        yield _torch_trainer(run, coordinator).fit
    finally:
        _clear_away(run)


def _clear_away(run: Run) -> None:
    """Remove what Ray Train leaves behind.

    Failures are only logged, so that they do not hide the outcome of the run.
    """
    if run.has_successor():  # what has the run's name is the later attempt's
        return
    try:
        remove_placements(lambda name: name == run.name)
    except (RayError, OSError) as error:
        log.warning("The placement groups of run %r could not be removed from the cluster: %s", run.name, error)
    try:
        _remove_ray_folder(run)
    except OSError as error:
        log.warning("Ray Train's folder of run %r could not be removed: %s", run.name, error)


def _remove_ray_folder(run: Run) -> None:
    """Remove the folder that Ray Train requires.

    It is for checkpoints. Forebay saves none there.
    """
    folder = resolve(below(run.path, RAY_FOLDER))
    if folder.fs.get_file_info(folder.path).type == FileType.Directory:
        folder.fs.delete_dir(folder.path)
