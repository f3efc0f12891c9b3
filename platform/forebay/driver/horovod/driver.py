"""The Horovod driver: worlds that change at a commit, in processes that stay."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import NoReturn, Self

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from forebay.checkpoint.ray_store import checkpoint_stores
from forebay.driver.elastic.coordinator_actor import coordinator_of
from forebay.driver.elastic.event_loop import follow
from forebay.driver.horovod.backend import WorkerPool
from forebay.driver.horovod.failure_detector import HorovodController, HorovodTerms, RunRaised, TooManyLost
from forebay.errors import InvalidOption, RunFailed
from forebay.events import Preparing
from forebay.job.job import Job
from forebay.ray_cluster.session import ray_session, session_text
from forebay.runs.callback import Callback
from forebay.runs.result import Result
from forebay.runs.run import Run
from forebay.runs.worker_spec import pack

END_S = 10.0

log = logging.getLogger(__name__)


class HorovodDriver:
    """`Driver` on Elastic Horovod, with Ray's actors as its workers.

    Workers that stay keep their process when the world changes: they leave one Horovod and enter the next. Raises
    `InvalidOption` where Horovod is not installed.
    """

    def __init__(self) -> None:
        if find_spec("horovod") is None:
            raise InvalidOption(
                "driver='horovod' needs Horovod, which is not installed. It must be built for the PyTorch that is "
                "there: `make horovod` in a clone of Forebay does it; docs/horovod.md says how it is done elsewhere. "
                "Or use driver='ray'.",
                driver="horovod",
            )

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result:
        """Train `job`. Raises `RunFailed` when its train function raises, or workers die too often."""
        with Run(job, callbacks) as run:
            if run.is_finished:
                return run.result
            run.tell(Preparing(what=session_text()))
            with ray_session(job.max_cpus):
                _check_is_within_cluster()
                with coordinator_of(run, "horovod") as coordinator, checkpoint_stores(run.name):
                    return _train(run, coordinator)


def _check_is_within_cluster() -> None:
    if ray.util.client.ray.is_connected():
        raise InvalidOption(
            "driver='horovod' was started through ray://, from outside of the cluster. Workers meet at the driver's "
            "own address: run it on a node of the cluster (RAY_ADDRESS=host:port or 'auto'), or as a submitted Ray job."
        )


def _train(run: Run, coordinator: ActorHandle) -> Result:
    job = run.job
    run.tell(Preparing(what=f"starting {job.start_workers} workers, a process each"))
    terms = HorovodTerms(
        name=run.name,
        min_workers=job.min_workers,
        max_failures=job.max_failures,
        hang_timeout_s=job.hang_timeout_s,
    )
    try:
        with _crew(run, coordinator) as crew:
            conductor = HorovodController(terms, crew, coordinator)
            with _Conducting(conductor, coordinator) as conducting:
                stopped = follow(run, coordinator, lambda: conducting.is_running)
    except RayError as error:
        raise RunFailed(
            f"run {run.name!r} lost its connection to Ray ({type(error).__name__}). What was committed is kept: run "
            f"{run.name!r} again to continue.",
            name=run.name,
        ) from error
    if stopped is not None:
        return run.finish(stopped)
    if conducting.error is not None:
        _raise_end(run, conducting.error)
    return run.finish(conducting.stopped)


def _raise_end(run: Run, error: BaseException) -> NoReturn:
    """Raise what the conductor's end with `error` means to the user."""
    match error:
        case RunRaised():
            end = error.raised.as_error(run.name)
            raise end from end.__cause__
        case TooManyLost():
            raise run.too_many_failures(str(error)) from error
        case _:
            raise error


class _Conducting:
    """The conductor's thread, for the length of a block."""

    def __init__(self, conductor: HorovodController, coordinator: ActorHandle) -> None:
        self.stopped: str | None = None
        self.error: BaseException | None = None
        self._conductor, self._coordinator = conductor, coordinator
        self._thread = threading.Thread(target=self._run, name="forebay-horovod", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RayError):
            ray.get(self._coordinator.end.remote())
        self._thread.join(END_S)
        if self.is_running:
            log.warning("The thread that leads the run's workers has not ended after %.0f s.", END_S)

    def _run(self) -> None:
        try:
            self.stopped = self._conductor.conduct()
        except BaseException as error:  # noqa: BLE001 - it is the following thread's to judge
            self.error = error


@contextmanager
def _crew(run: Run, coordinator: ActorHandle) -> Iterator[WorkerPool]:
    crew = WorkerPool(run.name, coordinator, pack(run.launch), run.job.resources)
    try:
        yield crew
    finally:
        crew.close()
