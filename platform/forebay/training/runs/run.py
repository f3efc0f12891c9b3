"""A run, for its driver.

Name and folder, events so far, and callbacks.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Self

from forebay.errors import CursorMismatch, ExitCode, Fenced, Hung, ReadFailed, RunFailed, WriteFailed
from forebay.events import (
    INTERRUPTED,
    EpochEnded,
    Evaluated,
    Event,
    Failed,
    Finished,
    NodeUsed,
    Preparing,
    Reported,
    Resized,
    Started,
    Warned,
)
from forebay.runtime.gpus import GpuSupply
from forebay.storage.atomic import write_failed
from forebay.storage.credentials import Access, redact, redacted
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.job.job import Job
from forebay.training.job.resources import settled, share_text
from forebay.training.runs.attempts.fence import Fence
from forebay.training.runs.attempts.files import AttemptEnd
from forebay.training.runs.attempts.start import start_attempt
from forebay.training.runs.control import Callback, Control, RequestReader, notify
from forebay.training.runs.job_facts import check_identity, nothing_to_train, other_parameters, record_job
from forebay.training.runs.result import Result, RunHistory, load_result, save_result
from forebay.training.runs.rows.order_record import other_order, record_order
from forebay.training.runs.run_folder import new_run_folder, run_folder
from forebay.training.runs.timeline.origin import origin_of
from forebay.training.runs.timeline.recorder import TimelineRecorder
from forebay.training.runs.timeline.timeline import RunStart, open_timeline
from forebay.training.runs.worker_spec import WorkerSpec, title_of
from forebay.training.state.known_reports import KnownReports

MOST_WARNINGS, MOST_WARNED_STEPS = 8, 64
"""Warnings of one step that are told, and steps for which they are counted."""
MOST_BLAMED = 2
"""Silent ranks that the error of a run names with their places."""

log = logging.getLogger(__name__)


class Run:
    """Records the events of a job, and calls callbacks.

    Keeps `result.json` up to date. A name that was run before continues: its earlier epochs are part of the result.
    Until the end of the `with` block this process has the run's newest attempt. If a later one takes over, `tell` and
    `check_fence` raise `Fenced`.

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
        self._warned = Counter[int]()  # by step
        self._silent: dict[int, str] = {}  # by rank
        self._next_save, self._saved_step = 0.0, 0
        self._world_size: int | None = None
        folder = new_run_folder(job.storage, _title(job)) if job.name is None else run_folder(job.storage, job.name)
        self.folder = folder
        self.control = Control.of(job)
        self._fence = Fence(None, None)
        self._followed_stop: str | None = None
        self._timeline: TimelineRecorder | None = None
        self._load()
        if self.is_finished:
            log.warning("%s", nothing_to_train(job, folder))
        while not self.is_finished and self._has_followed():
            self._load()
        if self.is_finished:
            return
        try:
            self._begin()
        except BaseException as error:  # without an end, the claim would count as alive where nothing can be locked
            self._fence.release(_failed_by(error))
            raise

    def _begin(self) -> None:
        goes_on = self.result.steps or self.result.epochs
        if goes_on and (warning := other_parameters(self.job, self.folder)):
            log.warning("%s", warning)
        record_job(self.job, self.folder)
        record_order(self.job.data, self.folder)
        # Another attempt may have ended meanwhile.
        self._load()
        start = RunStart(at=time.time(), attempt=self.attempt, origin=origin_of(self.job))
        self._timeline = TimelineRecorder(self.folder, start, open_timeline(self.folder))
        self._stored_requests = RequestReader(self.folder, self._fence.number, self.control)
        self._fence.watch(self._each_round)

    def _each_round(self) -> None:
        self._stored_requests.obey()
        self._save_timeline()

    def _save_timeline(self) -> None:
        if self._timeline is not None:
            self._timeline.save()

    def _load(self) -> None:
        try:
            # Before the plan: other rows are a consequence of another seq_len, and the error names the cause.
            check_identity(self.job, self.folder)
            earlier = self._earlier_result()
        except OSError as error:
            raise ReadFailed(
                f"the records of run {self.name!r} in {self.path} could not be read ({redact(str(error))}). Check that "
                "the storage answers.",
                what=self.path,
            ) from redacted(error)
        self._history = RunHistory(earlier or self._empty_result())
        self.control.begin_with(self.result.epochs_done)

    def _has_followed(self) -> bool:
        """Claim the run, or follow the attempt that has it to its end.

        Returns whether it has followed. Then the run may need another attempt: that one was interrupted, or had fewer
        epochs.
        """
        try:
            started = start_attempt(self.folder, self.job.start, self._tell_progress)
        except OSError as error:
            raise write_failed(f"the claim on run {self.name!r}", self.path, error) from redacted(error)
        if isinstance(started, Fence):
            self._fence = started
            return False
        end = started.end
        if end.how == "failed":
            again = f"Run {self.name!r} again"
            remedy = "" if again in end.why else f" {again} to continue from its newest checkpoint."
            raise RunFailed(
                f"{started.claim.title} of run {self.name!r}, which this start has followed, failed: "
                f"{end.why.rstrip('.')}.{remedy}",
                name=self.name,
                summary=end.why,
            )
        if end.how == "stopped" or (end.how == "finished" and end.why):
            self._followed_stop = end.why or "stopped"
        return True

    def _tell_progress(self, text: str) -> None:
        notify(self._callbacks, Preparing(what=text), self.control)

    def _earlier_result(self) -> Result | None:
        earlier = load_result(self.folder)
        plan = self.job.data.plan
        if earlier is not None and earlier.plan_id not in (plan.id, *plan.continues):
            other = other_order(plan, self.folder)
            raise CursorMismatch(
                f"the run {self.name!r} was made with plan {earlier.plan_id[:12]}; this job builds plan "
                f"{plan.id[:12]}{f', of other {other}' if other else ''}. Use the same data, seed, lanes and "
                "shuffle_rows, or give the run a new name.",
                name=self.name,
                found=earlier.plan_id,
                wanted=plan.id,
            )
        if earlier is None:
            return None
        self.job.data.validate_statistics(earlier.statistics, owner=f"the run {self.name!r}")
        return replace(earlier, name=self.name, plan_id=plan.id, num_epochs=max(self.job.epochs, earlier.epochs_done))

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
    def name(self) -> str:
        return self.folder.name

    @property
    def path(self) -> str:
        """URI of its folder."""
        return self.folder.uri

    @property
    def worker_spec(self) -> WorkerSpec:
        """Specification for the workers of the run."""
        return WorkerSpec(
            name=self.name,
            train=self.job.train,
            train_spec=replace(self.job.train_spec, run=self.path),
            resources=self.job.resources,
            cache=self.job.cache,
            checkpoint_config=self.checkpoint_config,
            hang_timeout_s=self.job.hang_timeout_s,
        )

    @property
    def checkpoint_config(self) -> CheckpointConfig:
        """Options of the checkpoints of this attempt."""
        return CheckpointConfig(
            uri=self.folder.checkpoints.uri,
            keep_last=self.job.keep_last,
            keep_every=self.job.keep_every,
            storage_every_s=self.job.storage_every_s,
            store_timeout_s=self.job.hang_timeout_s / 2,
            access=Access([self.path]),
            attempt=self.attempt,
            next_claim=self._fence.next_claim_uri,
            own_claim=self._fence.claim_uri,
            token=self._fence.token,
            restorable=self._fence.restorable,
        )

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing to train.

        Every epoch is trained, or the attempt that was followed was stopped.
        """
        return self._followed_stop is not None or self.result.epochs_done >= self.job.epochs

    @property
    def result(self) -> Result:
        found = self._history.result
        return found if self._followed_stop is None else replace(found, stopped=self._followed_stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        """Release the claim.

        If the run raised, calls the callbacks with `Failed`, so that each can close its files.
        """
        if isinstance(error, Hung) and self._silent:
            self._blame_silent(error)
        stopped = self.result.stopped
        end = AttemptEnd(how=self.control.how_ended(stopped), why=stopped or "")
        try:
            if error is not None:
                end = _failed_by(error)
                self._tell_end(error)
        finally:
            self._fence.release(end)

    def _blame_silent(self, error: Hung) -> None:
        """Begin the error with the ranks that stand still.

        Their warnings may be far above it.
        """
        first, others = [*self._silent.values()][:MOST_BLAMED], len(self._silent) - MOST_BLAMED
        more = f", and {others} other{'s' if others > 1 else ''} stand still" if others > 0 else ""
        error.args = (f"{'; '.join(first)}{more}. {error}",)
        error.facts["silent"] = sorted(self._silent)

    def _tell_end(self, error: BaseException) -> None:
        event = Failed(error=_summary(error), failures=self._failures + 1, will_retry=False)
        self._record(event)
        try:
            self._save()
        except (WriteFailed, Fenced) as unsaved:
            # A run often ends because the storage is full. Then the run's own error says so.
            log.log(logging.INFO if isinstance(unsaved, Fenced) else logging.WARNING, "%s", unsaved)
        try:
            notify(self._callbacks, event, self.control)
        except RunFailed:
            log.warning("A callback raised on the end of a run that had failed already.", exc_info=True)

    def tell(self, event: Event) -> None:
        """Record `event` and call the callbacks.

        Raises `RunFailed` if one of them raises, and `Fenced` if a later attempt has taken over. An epoch or evaluation
        that is recorded already is not passed on.
        """
        if isinstance(event, NodeUsed):  # from a thread of its own
            if self._timeline is not None:
                self._timeline.record(event)
            return
        self._fence.check()
        if (news := self._news(event)) is not None:
            self._pass_on(news)

    def _pass_on(self, event: Event) -> None:
        match event:
            case Started():
                self._silent.clear()
                self._fence.show(epochs=event.epochs, world_size=event.world_size)
                self._tell_resize(event)
            case Warned(rank=int(rank)):
                self._silent[rank] = event.reason
            case Reported():
                self._silent.clear()
                self._step = event.step
                self._fence.show(step=event.step, epoch=event.epoch)
                self.control.follow(batch=event.global_batch)
            case Failed():
                self._failures, self._world_size = event.failures, None
        self._record(event)
        if isinstance(event, EpochEnded | Started):
            self._save(is_result=isinstance(event, EpochEnded))
        elif isinstance(event, Reported | Evaluated):
            self._save_steps(event.step, has_checkpoint=isinstance(event, Evaluated))
        elif isinstance(event, Finished):
            self._fence.confirm()
            self._save_now()
        notify(self._callbacks, event, self.control)

    def _news(self, event: Event) -> Event | None:
        """Return an event unless it is known, and the first warnings of a step: all of 4,096 ranks may stand still."""
        if isinstance(event, EpochEnded | Evaluated) and self._history.knows(event):
            return None
        if not isinstance(event, Warned):
            return event
        if len(self._warned) > MOST_WARNED_STEPS:
            self._warned.clear()
        self._warned[event.step] += 1
        if (count := self._warned[event.step]) < MOST_WARNINGS:
            return event
        more = f"{event.reason}; further warnings of this step are left out"
        return replace(event, reason=more) if count == MOST_WARNINGS else None

    @property
    def known(self) -> KnownReports:
        """Ended epochs and evaluations that the run has recorded."""
        return self._history.known

    @property
    def attempt(self) -> int | None:
        """Number of this attempt at the run.

        None on a store that cannot tell attempts apart.
        """
        return self._fence.number

    def check_fence(self) -> None:
        """Raise `Fenced` if a later attempt has taken over.

        Sends no request.
        """
        self._fence.check()

    def ask_fence(self) -> None:
        """Look for a later attempt, as the cause of an error.

        Raises `Fenced`.
        """
        with suppress(OSError):  # storage does not answer: the error stays what it is
            self._fence.ask()

    def has_successor(self) -> bool:
        """Whether a later attempt has the run, as far as storage answers."""
        try:
            self.ask_fence()
        except Fenced:
            return True
        except WriteFailed:
            pass
        return False

    def settle(self, supply: GpuSupply) -> None:
        """Decide how many GPUs each worker gets, and say it.

        Where no node can join, the target stays within the GPUs. Raises `InvalidOption` if the smallest world has too
        few there.
        """
        wanted, most, elastic = self.job.resources, self.job.max_workers, self.job.elastic
        given = settled(wanted, supply, workers=self.job.min_workers)
        if elastic is not None and given.gpus and not supply.grows:
            elastic = elastic.with_room(supply.room(given.gpus))
            self.control.bound(elastic)
        self.job = replace(self.job, resources=given, elastic=elastic)
        if self._timeline is not None:
            self._timeline.set_config("job.gpus", given.gpus)
        if text := share_text(wanted, given, supply, workers=most):
            self.tell(Preparing(what=text))

    def _record(self, event: Event) -> None:
        self._history.record(event)
        if self._timeline is not None:
            self._timeline.record(event)

    def _save(self, *, is_result: bool = True) -> None:
        try:
            self._fence.ask()
        except OSError as error:  # the next epoch saves it, or the fence ends the run
            log.warning("What run %r has reached is not saved yet (%s).", self.name, redact(str(error)))
            return
        self._save_now(is_result=is_result)

    def _save_steps(self, step: int, *, has_checkpoint: bool) -> None:
        """Save the steps up to a checkpoint, for a later attempt.

        At most a twentieth of the time is spent on it.
        """
        began, every = time.monotonic(), self.job.checkpoint_every
        is_due = has_checkpoint or step // every > self._saved_step // every
        if not is_due or began < self._next_save:
            return
        self._saved_step = step
        try:
            # This process may have been suspended since the fence's last question: the steps of a later attempt stay.
            self._fence.ask()
            save_result(self.result)
        except (OSError, WriteFailed) as error:  # the next one saves it, or the end of the epoch says so
            log.warning("The steps of run %r are not saved yet (%s).", self.name, redact(str(error)))
        self._next_save = began + 20 * (time.monotonic() - began)

    def _save_now(self, *, is_result: bool = True) -> None:
        self._save_timeline()
        if is_result:
            save_result(self.result)

    def _tell_resize(self, started: Started) -> None:
        """Report a change of the world size.

        Workers report only their start, but the run knows the size before.
        """
        before, self._world_size = self._world_size, started.world_size
        self.control.follow(world_size=started.world_size)
        if before not in (None, started.world_size):
            self.tell(Resized(old=before, new=started.world_size, step=self._step))

    def lost_workers(self, error: str) -> bool:
        """Record lost workers.

        Returns whether they may be replaced once more.
        """
        will_retry = self._failures < self.job.max_failures
        if will_retry:
            self.tell(Failed(error=error, failures=self._failures + 1, will_retry=True))
        return will_retry

    def too_many_failures(self, last_error: str) -> RunFailed:
        """Return the error for workers lost too often."""
        lost = self._failures + 1
        return RunFailed(
            f"run {self.name!r} lost workers {lost} time{'s' if lost > 1 else ''}, and max_failures="
            f"{self.job.max_failures} allows no more. The last time: {last_error}. An unexpected SIGKILL "
            f"mostly means too little memory. Run {self.name!r} again: it continues from its newest checkpoint, if it "
            "has one.",
            name=self.name,
            failures=lost,
            summary=last_error,
        )

    def finish(self, stopped: str | None) -> Result:
        """Record that all workers have returned.

        `stopped` is the reason if they returned early. Waits until storage confirms that no later attempt has taken
        over. Of several attempts that train all epochs, the first one's result is the result.
        """
        self._fence.confirm()
        if stopped is None and self.is_finished:
            earlier = self._fence.finish(self.result.num_epochs, self.result.to_json())
            if earlier is not None:
                self._history = RunHistory(replace(Result.from_json(earlier), name=self.name, path=self.path))
        self.tell(Finished(name=self.name, path=self.path, stopped=stopped))
        return self.result


def _title(job: Job) -> str:
    """Return a name for a run without one.

    It has the train function and the time, in letters that a folder name may have.
    """
    title = re.sub(r"[^A-Za-z0-9_]+", "-", title_of(job.train)).strip("-_") or "run"
    return f"{title}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _failed_by(error: BaseException) -> AttemptEnd:
    why = redact(_summary(error))
    return AttemptEnd(how="interrupted" if why == INTERRUPTED else "failed", why=why)


def _summary(error: BaseException) -> str:
    """One line about `error`.

    Its traceback is for people, not for callbacks.
    """
    was_terminated = isinstance(error, SystemExit) and error.code == ExitCode.TERMINATED
    if was_terminated or isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, RunFailed) and "summary" in error.facts:
        return str(error.facts["summary"])
    return f"{type(error).__name__}: {error}".partition("\n")[0]
