"""Main function of a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from forebay.data.cache.disk.lease import named_user
from forebay.errors import BadJob, Hung
from forebay.events import Reporter, Started
from forebay.training.collectives.torch_collective import is_timeout
from forebay.training.runs.worker_spec import WorkerSpec
from forebay.training.worker.worker import Worker

Watch = Callable[[Callable[[], Mapping[str, float]]], AbstractContextManager[object]]
"""Opens a context to train in. Its argument is a function that returns the worker's counters."""


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
    with named_user(spec.name), watch(worker.counted), _hang_named(spec, world.rank):
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
