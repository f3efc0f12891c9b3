"""One run as its driver sees it: name and folder, events so far, and callbacks."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import Self

from forebay.checkpoint.config import FOLDER, CheckpointConfig
from forebay.errors import CursorMismatch, RunFailed, WriteFailed
from forebay.events import EpochEnded, Event, Failed, Finished, Reported, Resized, Started
from forebay.job.job import Job
from forebay.runs.callback import Callback, notify
from forebay.runs.control import Control
from forebay.runs.history import History
from forebay.runs.job_record import record_job
from forebay.runs.result import Result, load_result, save_result
from forebay.runs.run_folder import acquire_new_run_folder, acquire_run_folder
from forebay.runs.worker_spec import WorkerSpec, title_of
from forebay.storage.credentials import Access
from forebay.storage.filesystem import below

log = logging.getLogger(__name__)


class Run:
    """Records the events of `job`'s workers, calls `callbacks`, and keeps `result.json` up to date.

    A name that was run before continues: its earlier epochs are part of the result. The run's folder is locked until
    the end of the `with` block.

    Raises the errors of `job.check()`. Raises `CursorMismatch` if the earlier run was made with another plan
    or with other statistics, and `JobMismatch` if it was begun by a job of another identity. Raises `InvalidOption` if
    the run is under way or its folder cannot be used.
    """

    def __init__(self, job: Job, callbacks: Sequence[Callback] = ()) -> None:
        job.check()
        if advice := job.data.shuffle_advice:
            log.warning("%s", advice)
        self.job = job
        self._callbacks = tuple(callbacks)
        self._failures, self._step = 0, 0
        self._world_size: int | None = None
        self._folder = (
            acquire_new_run_folder(job.storage, _title(job))
            if job.name is None
            else acquire_run_folder(job.storage, job.name)
        )
        self.name, self.path = self._folder.name, self._folder.path
        with ExitStack() as undo:
            undo.callback(self._folder.release)
            record_job(job, self.path, self.name)
            self._history = History(self._earlier_result() or self._empty_result())
            undo.pop_all()
        self.control = Control.of(job, epoch=self.result.epochs_done)

    def _earlier_result(self) -> Result | None:
        earlier = load_result(self.path)
        plan = self.job.data.plan
        if earlier is not None and earlier.plan_id not in (plan.id, *plan.continues):
            raise CursorMismatch(
                f"the run {self.name!r} was made with plan {earlier.plan_id[:12]}; this job builds plan "
                f"{plan.id[:12]}. Use the same data, seed, lanes and window_rows, or give the run a new "
                "name.",
                name=self.name,
                found=earlier.plan_id,
                wanted=plan.id,
            )
        if earlier is None:
            return None
        self.job.data.validate_statistics(earlier.statistics, owner=f"the run {self.name!r}")
        return replace(earlier, plan_id=plan.id, num_epochs=max(self.job.epochs, earlier.epochs_done))

    def _empty_result(self) -> Result:
        data = self.job.data
        return Result(
            name=self.name,
            path=self.path,
            plan_id=data.plan.id,
            num_epochs=self.job.epochs,
            statistics=data.statistics,
        )

    @property
    def worker_spec(self) -> WorkerSpec:
        """Specification for the workers of the run."""
        return WorkerSpec(
            name=self.name,
            train=self.job.train,
            train_spec=self.job.train_spec,
            resources=self.job.resources,
            cache=self.job.cache,
            checkpoint_config=CheckpointConfig(
                uri=below(self.path, FOLDER),
                keep_last=self.job.keep_last,
                keep_every=self.job.keep_every,
                storage_every_s=self.job.storage_every_s,
                store_timeout_s=self.job.hang_timeout_s / 2,
                access=Access([self.path]),
            ),
            hang_timeout_s=self.job.hang_timeout_s,
        )

    @property
    def is_finished(self) -> bool:
        """Whether every epoch of the job is already trained."""
        return self.result.epochs_done >= self.job.epochs

    @property
    def result(self) -> Result:
        return self._history.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        """Release the folder. If the run raised, call the callbacks with `Failed`, so that each can close its files."""
        try:
            if error is not None:
                self._tell_end(error)
        finally:
            self._folder.release()

    def _tell_end(self, error: BaseException) -> None:
        event = Failed(error=_summary(error), failures=self._failures + 1, will_retry=False)
        self._history.record(event)
        try:
            save_result(self.result)
        except WriteFailed as unsaved:
            # A run often ends because the storage is full. Then the run's own error says so.
            log.warning("%s", unsaved)
        try:
            notify(self._callbacks, event, self.control)
        except RunFailed:
            log.warning("A callback raised on the end of a run that had failed already.", exc_info=True)

    def tell(self, event: Event) -> None:
        """Record `event` and call the callbacks. Raises `RunFailed` if one of them raises.

        A worker that resumes reports earlier epochs again. An unchanged report is not passed on.
        """
        if isinstance(event, EpochEnded) and self._history.knows(event):
            return
        match event:
            case Started():
                self._tell_resize(event)
            case Reported():
                self._step = event.step
                self.control.follow(batch=event.global_batch)
            case Failed():
                self._failures, self._world_size = event.failures, None
        self._history.record(event)
        if isinstance(event, EpochEnded | Finished):
            save_result(self.result)
        notify(self._callbacks, event, self.control)

    def _tell_resize(self, started: Started) -> None:
        """Report a change of the world size. Workers report only their start, but the run knows the size before."""
        before, self._world_size = self._world_size, started.world_size
        self.control.follow(world_size=started.world_size)
        if before not in (None, started.world_size):
            self.tell(Resized(old=before, new=started.world_size, step=self._step))

    def lost_workers(self, error: str) -> bool:
        """Record lost workers. Returns whether they may be replaced once more."""
        will_retry = self._failures < self.job.max_failures
        if will_retry:
            self.tell(Failed(error=error, failures=self._failures + 1, will_retry=True))
        return will_retry

    def too_many_failures(self, last_error: str) -> RunFailed:
        """Error that ends the run, for lost workers that may not be replaced again."""
        lost = self._failures + 1
        return RunFailed(
            f"run {self.name!r} lost workers {lost} time{'s' if lost > 1 else ''}, and max_failures="
            f"{self.job.max_failures} allows no more. The last time: {last_error}. An unexpected SIGKILL "
            f"mostly means too little memory. The newest checkpoint is kept: run {self.name!r} again to continue.",
            name=self.name,
            failures=lost,
            summary=last_error,
        )

    def finish(self, stopped: str | None) -> Result:
        """Record that all workers have returned. `stopped` is the reason if they returned early."""
        self.tell(Finished(name=self.name, path=self.path, stopped=stopped))
        return self.result


def _title(job: Job) -> str:
    """Name of a run that was given none: the train function and the time, in letters that a folder name may have."""
    title = re.sub(r"[^A-Za-z0-9_]+", "-", title_of(job.train)).strip("-_") or "run"
    return f"{title}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _summary(error: BaseException) -> str:
    """One line about `error`. Its traceback is for people, not for callbacks."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, RunFailed) and "summary" in error.facts:
        return str(error.facts["summary"])
    return f"{type(error).__name__}: {error}".partition("\n")[0]
