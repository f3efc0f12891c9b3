"""Main function of a worker process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from forebay.data.cache.disk.lease import named_user
from forebay.errors import BadJob, Hung
from forebay.events import NodeUsed, Reporter, Started
from forebay.runtime.foreign_code import begin
from forebay.training.collectives.torch_collective import is_timeout
from forebay.training.runs.worker_spec import WorkerSpec
from forebay.training.worker.worker import Worker

Watch = Callable[[Callable[[], Mapping[str, float]]], AbstractContextManager[object]]
"""Opens a context to train in. Its argument is a function that returns the worker's counters."""

USE_EVERY_S, USE_AT_MOST_EVERY_S = 5.0, 60.0
FIRST_RANKS = 128
"""Ranks among which nodes report their use. The record has a few nodes."""


def _unwatched(_counted: Callable[[], Mapping[str, float]]) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End of a worker's part in a world.

    All epochs are trained, the run is stopped, or the world is resized. `stopped` is the reason of an early stop.
    `resize_to` is the size of the next world, which continues from the newest checkpoint. Every rank has left its world
    at that checkpoint.
    """

    stopped: str | None = None
    resize_to: int | None = None


def work(
    spec: WorkerSpec,
    worker: Worker,
    reporter: Reporter,
    watch: Watch = _unwatched,
) -> Outcome:
    """Train to the end as one worker.

    Raises `BadJob` for a train function that returns before the last epoch without a request to stop. Raises `Hung` if
    another rank did not answer within the job's `hang_timeout_s`.
    """
    world = worker.world
    if world.is_first:
        reporter.report(
            Started(
                name=spec.name,
                world_size=world.size,
                epochs=spec.train_spec.epochs,
                num_batches=spec.train_spec.data.num_batches,
                max_steps=spec.train_spec.max_steps,
            )
        )
    use, stall = _use_told(worker, reporter), _stall_told(spec, worker, reporter)
    with named_user(spec.name), watch(worker.counted), use, stall, _hang_named(spec, world.rank):
        worker.run(spec.train)
    if not worker.is_finished and worker.stopped is None and worker.resize_to is None:
        raise BadJob(
            f"the train function returned in epoch {worker.epoch + 1} of {worker.epochs}, after step {worker.step}. "
            "Iterate worker.loader() to its end and commit every step; to end a run early, let a callback call "
            "control.stop(reason).",
            epoch=worker.epoch,
            step=worker.step,
        )
    return Outcome(stopped=worker.stopped, resize_to=worker.resize_to)


@contextmanager
def _use_told(worker: Worker, reporter: Reporter) -> Iterator[None]:
    """Report the use of this node during the block, from its first worker."""
    ended, world = threading.Event(), worker.world
    if world.local_rank or world.rank >= FIRST_RANKS:
        yield
        return
    options = {"with_gpus": worker.device.type == "cuda"}
    thread = threading.Thread(target=_tell_use, args=(reporter, ended), kwargs=options, name="forebay-use", daemon=True)
    thread = begin(thread)
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)


def _tell_use(reporter: Reporter, ended: threading.Event, *, with_gpus: bool) -> None:
    if ended.wait(USE_EVERY_S):
        return
    from forebay.training.driver.machine_meter import MachineMeter  # noqa: PLC0415 - beside training, and not in short runs

    meter, lasted_s, every_s = MachineMeter(with_gpus=with_gpus), 0.0, USE_EVERY_S
    node = socket.gethostname()
    while not ended.wait(every_s):
        reporter.report(NodeUsed(node=node, use=meter.read()))
        lasted_s += every_s
        every_s = min(max(USE_EVERY_S, lasted_s / 100), USE_AT_MOST_EVERY_S)


def _stall_told(spec: WorkerSpec, worker: Worker, reporter: Reporter) -> AbstractContextManager[object]:
    if worker.world.size == 1:
        return nullcontext()
    from forebay.training.driver.stall_watch import stall_told  # noqa: PLC0415 - of several ranks

    return stall_told(worker, reporter, spec.hang_timeout_s, spec.name)


@contextmanager
def _hang_named(spec: WorkerSpec, rank: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_timeout(error):
            raise
        raise Hung(
            f"rank {rank} of run {spec.name!r} got no answer from another rank, with hang_timeout_s="
            f"{spec.hang_timeout_s:g}: one of them hangs, though its process is alive. Look for a rank that takes "
            "another number of steps, waits for a lock, or reads without end; if a step may take that long, raise "
            f"hang_timeout_s. Run {spec.name!r} again: it continues from its newest checkpoint, if it has "
            "one.",
            rank=rank,
            timeout_s=spec.hang_timeout_s,
        ) from error
