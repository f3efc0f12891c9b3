"""Local driver, which needs no Ray.

It has one worker in this process, or several in processes of this machine.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import torch

from forebay.data.cache.source import LocalCache
from forebay.errors import ForebayError
from forebay.events import EpochEnded, Evaluated, Event, Preparing, Request
from forebay.runtime.fork_server import ForkServer, Program
from forebay.runtime.gpus import gpus_here
from forebay.training.checkpoint.local_store import open_local_checkpoints
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.driver.local.child import Sync
from forebay.training.driver.local.processes import RankProcesses, WorkerLost, WorkerRaised, worker_processes
from forebay.training.driver.worker_error import WorkerError
from forebay.training.driver.worker_main import work
from forebay.training.job.job import Job
from forebay.training.job.resources import device_of, use_device
from forebay.training.runs.control import Callback
from forebay.training.runs.result import Result
from forebay.training.runs.run import Run
from forebay.training.runs.worker_spec import pack
from forebay.training.state import rng
from forebay.training.worker.worker import Worker


class LocalDriver:
    """`Driver` without Ray, for notebooks, tests and single machines."""

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result:
        """Train `job` here.

        Raises `RunFailed` when its train function raises, or workers die too often.
        """
        with Run(job, callbacks) as run:
            if run.is_finished:
                return run.result
            run.settle(gpus_here())
            # In processes if the job is elastic: its only worker may have to be replaced by two, which cannot happen in
            # this process.
            return _run_here(run) if job.elastic is None and job.workers == 1 else _run_processes(run)


class DirectReporter:
    """`Reporter` of a worker in the driver's process.

    The worker waits while callbacks run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def report(self, *events: Event) -> None:
        for event in events:
            self._run.tell(event)

    def request(self) -> Request:
        return self._run.control.request

    def synced_request(self) -> Request:
        return self._run.control.request

    def knows(self, report: EpochEnded | Evaluated) -> bool:
        return self._run.known.knows(report)


def _run_here(run: Run) -> Result:
    spec = run.worker_spec
    device = use_device(device_of(spec.resources))
    cache = None if spec.cache is None else LocalCache(spec.cache)
    try:
        with _generators_put_back(device), closing(open_local_checkpoints(spec.checkpoint_config)) as checkpoints:
            reporter = DirectReporter(run)
            worker = Worker(spec.train_spec, SingleProcessCollective(device), cache, checkpoints, reporter)
            outcome = work(spec, worker, reporter)
    except ForebayError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit() would end this process without an error
        raise WorkerError.of(error, rank=0).as_error(run.name) from error
    return run.finish(outcome.stopped)


@contextmanager
def _generators_put_back(device: torch.device) -> Iterator[None]:
    """Restore this process's random generators after the block.

    The run seeds them, and the notebook around it must not notice.
    """
    state = rng.capture(device)
    try:
        yield
    finally:
        rng.restore(state, device)


def worker_program() -> Program:
    """Return the program of the workers."""
    # The host name may resolve to an address that no worker can reach: gloo is bound to loopback.
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    return Program(
        # torch imports _dynamo (1.7 s) at the first use of an optimizer, and the kernels import Numba (0.5 s) at
        # theirs.
        preload="import torch._dynamo; from forebay.data.parquet import page_kernels; page_kernels.load()",
        main=("forebay.training.driver.local.child", "main"),
        environment={"GLOO_SOCKET_IFNAME": loopback} if loopback else {},
    )


def _run_processes(run: Run) -> Result:
    with closing(ForkServer(worker_program())) as server:
        return _run_worlds(run, server)


def _run_worlds(run: Run, server: ForkServer) -> Result:
    payload = pack(run.worker_spec)
    while True:
        size = run.control.target
        run.tell(Preparing(what=f"starting {size} worker process{'es' if size > 1 else ''}"))
        try:
            with worker_processes(server, size, payload, run.known) as workers:
                _follow(run, workers, size)
            if workers.outcome.resize_to is None:
                return run.finish(workers.outcome.stopped)
        except WorkerLost as lost:
            if not run.lost_workers(str(lost)):
                raise run.too_many_failures(str(lost)) from lost
        except WorkerRaised as failure:
            error = failure.raised.as_error(run.name)
            raise error from error.__cause__


def _follow(run: Run, workers: RankProcesses, size: int) -> None:
    # Of several processes, imported here.
    from forebay.training.driver.hang_watch import HangWatch  # noqa: PLC0415
    from forebay.training.driver.rank_stack import silent_ranks  # noqa: PLC0415

    watch = HangWatch(run.job.hang_timeout_s, partial(silent_ranks, run.name, workers.pids), run.tell)
    try:
        for event in workers.events():
            run.check_fence()
            watch.check()
            match event:
                case Sync():
                    workers.answer_sync(run.control.request.for_world(size))
                case None:
                    pass
                case _:
                    watch.see(event)
                    run.tell(event)
            workers.send_request(run.control.request.for_world(size))
    except WorkerRaised:
        watch.look_now()
        raise
