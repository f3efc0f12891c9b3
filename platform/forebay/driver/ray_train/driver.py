"""Ray Train driver: the elastic core around a `TorchTrainer`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyarrow.fs import FileType
from ray.actor import ActorHandle
from ray.exceptions import RayError

from forebay.driver.elastic.elastic_driver import Trainer, train_elastic
from forebay.driver.ray_train.trainer import RAY_FOLDER, torch_trainer
from forebay.events import Preparing
from forebay.job.job import Job
from forebay.ray_cluster.placement import remove_places
from forebay.ray_cluster.session import ray_session, session_text, train_environment
from forebay.runs.callback import Callback
from forebay.runs.result import Result
from forebay.runs.run import Run
from forebay.storage.filesystem import below, resolve

log = logging.getLogger(__name__)


class RayTrainDriver:
    """`Driver` on Ray Train. Each worker is an actor. Blocks come from the cache actor of its node."""

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result:
        """Train `job` on Ray. Raises `RunFailed` when its train function raises, or workers die too often."""
        with Run(job, callbacks) as run:
            if run.is_finished:
                return run.result
            run.tell(Preparing(what=session_text()))
            with train_environment(), ray_session(job.max_cpus):
                return train_elastic(run, "ray", _open_backend)


@contextmanager
def _open_backend(run: Run, coordinator: ActorHandle) -> Iterator[Trainer]:
    try:
        yield torch_trainer(run, coordinator).fit
    finally:
        _clear_away(run)


def _clear_away(run: Run) -> None:
    """Remove what Ray Train leaves behind. Failures are only logged, so that they do not hide the outcome of the
    run.
    """
    try:
        remove_places(lambda name: name == run.name)
    except (RayError, OSError) as error:
        log.warning("The places of the workers of run %r could not be removed from the cluster: %s", run.name, error)
    try:
        _remove_ray_folder(run)
    except OSError as error:
        log.warning("Ray Train's folder of run %r could not be removed: %s", run.name, error)


def _remove_ray_folder(run: Run) -> None:
    """Remove the folder that Ray Train requires for checkpoints. Forebay saves none there."""
    folder = resolve(below(run.path, RAY_FOLDER))
    if folder.fs.get_file_info(folder.path).type == FileType.Directory:
        folder.fs.delete_dir(folder.path)
