"""One run as its driver sees it: its name and folder, what has happened so far, and who wants to know."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import Self

from forebay.checkpoint.config import CheckpointConfig
from forebay.errors import CursorMismatch, RunFailed, WriteFailed
from forebay.events import EpochEnded, Event, Failed, Finished, Reported, Resized, Started
from forebay.job.job import Job
from forebay.runs.callback import Callback, notify
from forebay.runs.control import Control
from forebay.runs.history import History
from forebay.runs.result import Result, load_result, save_result
from forebay.runs.run_folder import acquire_new_run_folder, acquire_run_folder
from forebay.runs.worker_spec import WorkerSpec, title_of
from forebay.storage.credentials import Access
from forebay.storage.filesystem import below

log = logging.getLogger(__name__)


class Run:
    """Takes the events of `job`'s workers, tells `callbacks`, and keeps `result.json` up to date.

    A name that was run before is continued: its earlier epochs are part of the result. The run's folder is held until
    the end of the `with` block. Raises what `job.check()` raises, `CursorMismatch` if the earlier run was made with
    another plan, and `InvalidOption` if the run is under way or its folder cannot be used.
    """

    def __init__(self, job: Job, callbacks: Sequence[Callback] = ()) -> None:
        job.check()
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
            self._history = History(self._earlier_result() or self._empty_result())
            undo.pop_all()
        self.control = Control.of(job, epoch=self.result.epochs_done)

    def _earlier_result(self) -> Result | None:
        earlier = load_result(self.path)
        if earlier is not None and earlier.plan_id != self.job.data.plan.id:
            raise CursorMismatch(
                f"the run {self.name!r} was made with plan {earlier.plan_id[:12]}; this job builds plan "
                f"{self.job.data.plan.id[:12]}. Use the same data, seed, lanes and window_rows, or give the run a new "
                "name.",
                name=self.name,
                found=earlier.plan_id,
                wanted=self.job.data.plan.id,
            )
        return earlier and replace(earlier, num_epochs=max(self.job.epochs, earlier.epochs_done))

    def _empty_result(self) -> Result:
        return Result(name=self.name, path=self.path, plan_id=self.job.data.plan.id, num_epochs=self.job.epochs)

    @property
    def worker_spec(self) -> WorkerSpec:
        """Specification that its workers start with."""
        return WorkerSpec(
            name=self.name,
            train=self.job.train,
            train_spec=self.job.train_spec,
            resources=self.job.resources,
            cache=self.job.cache,
            checkpoint_config=CheckpointConfig(
                uri=below(self.path, "checkpoints"),
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
        """Whether every epoch the job asks for is already trained."""
        return self.result.epochs_done >= self.job.epochs

    @property
    def result(self) -> Result:
        return self._history.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        """Release the folder. If the run raised, the callbacks receive `Failed`, so that each can close its files."""
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
            # Full storage is often why it ends: what the run raises says so.
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
        """Workers only say that they start. That the world had another size before is known here."""
        before, self._world_size = self._world_size, started.world_size
        self.control.follow(world_size=started.world_size)
        if before not in (None, started.world_size):
            self.tell(Resized(old=before, new=started.world_size, step=self._step))

    def lost_workers(self, error: str) -> bool:
        """Note that workers were lost. The answer says whether they may be replaced once more."""
        will_retry = self._failures < self.job.max_failures
        if will_retry:
            self.tell(Failed(error=error, failures=self._failures + 1, will_retry=True))
        return will_retry

    def too_many_failures(self, last_error: str) -> RunFailed:
        """The error to end the run with when workers were lost and may not be replaced again."""
        lost = self._failures + 1
        return RunFailed(
            f"run {self.name!r} lost workers {lost} time{'s' if lost > 1 else ''}, and max_failures="
            f"{self.job.max_failures} allows no more. The last time: {last_error}. A SIGKILL that nobody sent is most "
            f"often the kernel, short of memory. The newest checkpoint is kept: run {self.name!r} again to continue.",
            name=self.name,
            failures=lost,
            summary=last_error,
        )

    def finish(self, stopped: str | None) -> Result:
        """Note that all workers have returned. `stopped` says why they did so early."""
        self.tell(Finished(name=self.name, path=self.path, stopped=stopped))
        return self.result


def _title(job: Job) -> str:
    """Name of a run that was given none: the train function and the time, in letters a folder may have."""
    title = re.sub(r"[^A-Za-z0-9_]+", "-", title_of(job.train)).strip("-_") or "run"
    return f"{title}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _summary(error: BaseException) -> str:
    """One line: the traceback below it is for the person, not for a callback."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, RunFailed) and "summary" in error.facts:
        return str(error.facts["summary"])
    return f"{type(error).__name__}: {error}".partition("\n")[0]
