"""What a run's callbacks may ask for."""

from __future__ import annotations

import operator
import threading

from forebay.errors import BatchTooSmall, InvalidOption, whole_number
from forebay.events import Commands
from forebay.job.elastic import Elastic
from forebay.job.job import Job


class Control:
    """The requests a callback may make; its driver carries them out at the next saved commit.

    A stop, a global batch and fewer workers that are asked for on `EpochEnded` take effect at exactly that commit, in
    every run alike; more workers at the first commit after they are warm. Any thread may read and ask.

    >>> control = Control(elastic=Elastic(min_workers=1, max_workers=4))
    >>> control.resize(16)
    4
    >>> control.stop("loss is low enough")
    >>> control.orders.stop
    'loss is low enough'
    """

    def __init__(
        self,
        *,
        elastic: Elastic | None = None,
        workers: int = 1,
        global_batch: int = 1,
        epochs: int = 1,
        epoch: int = 0,
    ) -> None:
        self._elastic, self._epochs, self._epoch = elastic, epochs, epoch
        self._target = self._world_size = workers if elastic is None else elastic.target
        self._batch = global_batch
        self._stop: str | None = None
        self._asked_workers: int | None = None
        self._asked_batch: int | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, job: Job, epoch: int = 0) -> Control:
        """What the callbacks of `job` are given, which goes on in `epoch`."""
        return cls(
            elastic=job.elastic,
            workers=job.workers,
            global_batch=job.data.global_batch,
            epochs=job.epochs,
            epoch=epoch,
        )

    def stop(self, reason: str) -> None:
        """Commit, then end the run. The first reason given is the one that is kept."""
        with self._lock:
            if self._stop is None:
                self._stop = reason

    def resize(self, workers: int) -> int:
        """Train on `workers` workers, or as many as the job's bounds allow; the answer says how many that is.

        Of several calls the last one counts. Raises `InvalidOption` where the job is not elastic.
        """
        if self._elastic is None:
            raise InvalidOption(
                f"resize({workers}) was asked of a job with a fixed number of workers ({self._target}). Give the job "
                "elastic=Elastic(min_workers=..., max_workers=...)."
            )
        with self._lock:
            self._target = self._asked_workers = self._elastic.clamp(operator.index(workers))
            return self._target

    def global_batch(self, rows: int) -> None:
        """Train on `rows` rows per step, over all workers; this beats the job's own batch policy from then on.

        Raises `BatchTooSmall` for fewer rows than the job may have workers.
        """
        rows = whole_number("global_batch", rows, least=1)
        if rows < self.max_workers:
            raise BatchTooSmall(
                f"global_batch({rows}) has fewer rows than the job may have workers ({self.max_workers}). "
                f"Ask for {self.max_workers} rows or more.",
                global_batch=rows,
                max_workers=self.max_workers,
            )
        with self._lock:
            self._asked_batch = rows

    def follow(self, *, target: int | None = None, world_size: int | None = None, batch: int | None = None) -> None:
        """For drivers: take over what was found to be so, or was asked for elsewhere (`forebay scale`)."""
        with self._lock:
            if target is not None:
                self._target = target
            if world_size is not None:
                self._world_size = world_size
            if batch:
                self._batch = batch

    def take_resize(self) -> int | None:
        """For drivers: what `resize` was last asked for, if it was since the last call."""
        with self._lock:
            asked, self._asked_workers = self._asked_workers, None
            return asked

    @property
    def orders(self) -> Commands:
        """All that is asked for, as a worker hears it."""
        with self._lock:
            workers = None if self._elastic is None else self._target
            return Commands(stop=self._stop, workers=workers, global_batch=self._asked_batch)

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop, or None."""
        return self._stop

    @property
    def workers(self) -> int:
        """How many workers are wanted."""
        return self._target

    @property
    def world_size(self) -> int:
        """How many workers there are, or were last."""
        return self._world_size

    @property
    def min_workers(self) -> int:
        return self._target if self._elastic is None else self._elastic.min_workers

    @property
    def max_workers(self) -> int:
        return self._target if self._elastic is None else self._elastic.max_workers

    @property
    def is_elastic(self) -> bool:
        """Whether `resize` may be asked for."""
        return self._elastic is not None

    @property
    def job_epochs(self) -> int:
        """How many epochs the job asks for."""
        return self._epochs

    @property
    def first_epoch(self) -> int:
        """The epoch that training began with, or begins with, as far as is known before there are workers."""
        return self._epoch

    @property
    def batch(self) -> int:
        """Rows per step, as of the step that was reported last."""
        return self._batch
