"""A trial as Ray Tune sees it: an actor without CPUs, whose run trains beside the steps that Tune asks for."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.actor import ActorHandle
from ray.exceptions import RayError

from forebay.errors import Hung, InvalidOption, UnderWay
from forebay.events import EpochEnded
from forebay.runs.result import Result
from forebay.storage.credentials import redact
from forebay.storage.filesystem import below
from forebay.sweep.layout import run_name, runs_path
from forebay.sweep.trial.fork import hold, newest_stored
from forebay.sweep.trial.generations import newest_generation, take_over
from forebay.sweep.trial.nested_run import Epoch, NestedRun
from forebay.sweep.trial_spec import TrialSpec, blocks_of, unpack

log = logging.getLogger(__name__)

CHECKPOINT = "trial.json"
LISTEN_S = 0.5
STORED_S = 120.0
"""How long a commit may take to storage."""
HANDOVER_S = 120.0
"""How long an earlier process of the same trial may take to let go of its run."""
DUPLICATE: Mapping[str, Any] = {"__duplicate__": True}
"""Tune's word for: the trial is done, and its last result stands."""


class TrialRun(tune.Trainable):  # type: ignore[misc]
    """One trial. `step` is an epoch; between steps the run stands still at the epoch's end."""

    def setup(self, config: Mapping[str, Any], payload: bytes, bell: ActorHandle) -> None:  # noqa: ARG002 - Tune's
        """Nothing heavy: the run starts with the first step."""
        self._task: TrialSpec = unpack(payload)
        self._bell = bell
        self._begin()

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:  # noqa: ARG002 - it is in `self.config` by now
        """Become another trial: a process that has imported everything serves one after the other."""
        self.cleanup()
        if self._nested is not None:
            # Its run hangs, and would train on beside the next one's: to Tune this process is lost.
            os._exit(1)
        # A sweep of many trials would fill the memory with what only the collector can take apart.
        gc.collect()
        try:
            self._begin()
        except OSError as error:
            # A lost process is tried again, and by then storage may answer; what is raised here would be final.
            log.warning("Trial %s cannot begin: %s", self.trial_id, redact(str(error)))
            os._exit(1)
        return True

    def _begin(self) -> None:
        self._nested: NestedRun | None = None
        self._generation = newest_generation(self._runs, self._task.sweep, self.trial_id)
        self._told = -1
        self._held: tuple[int, int | None] | None = None
        self._began = time.monotonic()

    def step(self) -> dict[str, Any]:
        """Train to the end of the next epoch. Raises what the run raises."""
        nested = self._begun()
        while True:
            try:
                epoch = nested.next_epoch(LISTEN_S)
            except UnderWay:
                nested = self._begun_again()
                continue
            if epoch is not None and epoch.ended.epoch > self._told:
                return self._result(nested, epoch)
            if epoch is not None:
                nested.go_on(epoch.ended.epoch)
            elif nested.result is not None:
                return self._result_at_end(nested.result)
            elif self._is_over(nested):
                return dict(DUPLICATE)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Say which commit this is. Where trials exchange theirs, it is in storage from then on, and held there."""
        step = None
        nested = self._nested
        if nested is not None and (ended := nested.standing_at) is not None:
            step = ended.step
        if self._task.exchanges and nested is not None:
            # Asked again, the run may stand at the end of the next epoch by now.
            if self._held is None or self._held[0] != self._told:
                self._held = (self._told, self._stored_step(nested, step))
            step = self._held[1]
        facts = {"trial": self.trial_id, "generation": self._generation, "run": self._path, "step": step}
        Path(checkpoint_dir, CHECKPOINT).write_text(json.dumps(facts))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Go on with the own run, or from another trial's commit in a new one."""
        facts = json.loads(Path(checkpoint_dir, CHECKPOINT).read_text())
        if facts["trial"] == self.trial_id:
            self._generation = max(facts["generation"], self._generation)
        elif facts["step"] is not None:
            runs, sweep = self._runs, self._task.sweep
            self._generation = take_over(facts, runs, sweep=sweep, trial_id=self.trial_id, config=self.config)

    def cleanup(self) -> None:
        """Have the run commit and end: a trial that is stopped or paused loses nothing."""
        nested = self._nested
        if nested is None or self._is_hung(nested):
            return
        nested.stop("the sweep has stopped this trial")
        while not nested.join(LISTEN_S):
            if self._is_hung(nested):
                return
        self._nested = None

    @property
    def _runs(self) -> str:
        return runs_path(self._task.storage, self._task.sweep)

    @property
    def _path(self) -> str:
        return below(self._runs, run_name(self._task.sweep, self.trial_id, self._generation))

    def _begun(self) -> NestedRun:
        if self._nested is not None:
            self._nested.go_on(self._told)
            return self._nested
        task = self._task
        job = task.trial_job(self.config, self.trial_id, self._generation)
        self._nested = NestedRun(job, task.driver, task.make_callbacks(self.config))
        return self._nested

    def _begun_again(self) -> NestedRun:
        """The run anew, after an earlier process of this trial that has not let go of it yet."""
        assert self._nested is not None
        if time.monotonic() - self._began > HANDOVER_S:
            self._nested.next_epoch(0)
        self._nested = None
        time.sleep(LISTEN_S)
        return self._begun()

    def _is_over(self, nested: NestedRun) -> bool:
        """Whether the sweep ends, and with it the run. Raises `Hung` for one that is not heard of any more."""
        self._check_hung(nested)
        try:
            reason: str | None = ray.get(self._bell.heard.remote())
        except RayError:
            reason = "the sweep's driver is gone"
        if reason is None:
            return False
        nested.stop(reason)
        while not nested.join(LISTEN_S):
            if self._is_hung(nested):
                break
        return True

    def _join(self, nested: NestedRun) -> None:
        while not nested.join(LISTEN_S):
            self._check_hung(nested)

    def _check_hung(self, nested: NestedRun) -> None:
        if self._is_hung(nested):
            raise Hung(
                f"trial {self.trial_id} was not heard of for hang_timeout_s={self._task.hang_timeout_s:g} s. Raise it "
                "if steps, evaluations or writing its last commit take so long.",
                trial=self.trial_id,
            )

    def _is_hung(self, nested: NestedRun) -> bool:
        return nested.is_hung(self._task.hang_timeout_s)

    def _stored_step(self, nested: NestedRun, step: int | None) -> int | None:
        """Let the run write the commit at whose end it stands, and keep that for whoever wants to go on from it."""
        nested.go_on(self._told)
        deadline = time.monotonic() + STORED_S
        while step is not None and (newest_stored(self._path) or -1) < step and time.monotonic() < deadline:
            if not nested.is_running:
                break
            time.sleep(0.05)
        return hold(self._path, at_least=step or 0)

    def _result(self, nested: NestedRun, epoch: Epoch) -> dict[str, Any]:
        ended = epoch.ended
        self._told = ended.epoch
        is_last = ended.epoch + 1 >= nested.job.epochs
        if is_last:
            # What goes wrong at the very end is this trial's failure, too.
            self._join(nested)
            nested.next_epoch(0)
        facts = {
            "workers": epoch.workers,
            "rows_per_s": ended.rows / epoch.seconds,
            "epoch_s": epoch.seconds,
            "startup_s": epoch.startup_s,
            "resize_s": epoch.resize_s,
            "blocks": blocks_of(nested.job),
        }
        return facts | self._told_of(ended, is_over=is_last, is_finished=is_last)

    def _result_at_end(self, result: Result) -> dict[str, Any]:
        """A run that has ended without another epoch: one that was found finished, or was stopped by its callbacks."""
        last = result.epochs[-1] if result.epochs else None
        if last is None or last.epoch <= self._told:
            return dict(DUPLICATE)
        self._told = last.epoch
        return {"workers": 0} | self._told_of(last, is_over=True, is_finished=result.is_finished)

    def _told_of(self, ended: EpochEnded, *, is_over: bool, is_finished: bool) -> dict[str, Any]:
        task = self._task
        if task.metric not in ended.metrics:
            known = ", ".join(sorted(ended.metrics)) or "none"
            raise InvalidOption(
                f"metric={task.metric!r} was not told at the end of epoch {ended.epoch + 1}; the metrics there are: "
                f"{known}. Name one of them, or have the train function commit or report {task.metric!r}.",
                metric=task.metric,
            )
        value = ended.metrics[task.metric]
        diverged = not math.isfinite(value)
        worst = math.inf if task.mode == "min" else -math.inf
        return {
            **ended.metrics,
            task.metric: worst if diverged else value,
            "epoch": ended.epoch + 1,
            "training_iteration": ended.epoch + 1,
            "run": run_name(task.sweep, self.trial_id, self._generation),
            "diverged": diverged,
            "finished": is_finished and not diverged,
            "done": is_over or diverged,
        }
