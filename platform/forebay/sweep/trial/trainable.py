"""A trial as a Ray Tune actor without CPUs.

Its run trains beside the steps that Tune requests.
"""

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

from forebay.errors import Diverged, Hung, InvalidOption, UnderWay
from forebay.events import EpochEnded
from forebay.storage.credentials import redact
from forebay.storage.filesystem import below
from forebay.storage.json_file import to_json, write_json_file
from forebay.sweep.layout import run_name, runs_path
from forebay.sweep.trial.fork import newest_stored_step, pin
from forebay.sweep.trial.generations import newest_generation, start_generation
from forebay.sweep.trial.nested_run import Epoch, NestedRun
from forebay.sweep.trial_spec import RESULT_FACTS, TrialSpec, blocks_of, unpack
from forebay.training.runs.result import Result

log = logging.getLogger(__name__)

CHECKPOINT = "trial.json"
POLL_S = 0.5
STORED_S = 120.0
"""Time limit for a checkpoint to reach storage."""
HANDOVER_S = 120.0
"""Time limit for an earlier process of the same trial to release its run."""
DUPLICATE: Mapping[str, Any] = {"__duplicate__": True}
"""Tune's marker: the trial is done, and its last result is final."""


class TrialRun(tune.Trainable):  # type: ignore[misc]
    """One trial, whose step is an epoch.

    Between steps the run is paused at the end of the epoch.
    """

    def setup(self, config: Mapping[str, Any], payload: bytes, stop_flag: ActorHandle) -> None:  # noqa: ARG002 - Tune's
        """Prepare the trial.

        The run starts with the first step.
        """
        self._spec: TrialSpec = unpack(payload)
        self._stop_flag = stop_flag
        self._reset()

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:  # noqa: ARG002 - it is in `self.config` by now
        """Become another trial.

        A process that has imported everything serves one trial after the other.
        """
        self.cleanup()
        if self._nested is not None:
            # The run of this process hangs and would train beside the next one. For Tune, this process is lost.
            os._exit(1)
        # Reference cycles of many trials would fill the memory.
        gc.collect()
        try:
            self._reset()
        except OSError as error:
            # A lost process is replaced, and storage may answer by then. An exception here would be final.
            log.warning("Trial %s cannot start: %s", self.trial_id, redact(str(error)))
            os._exit(1)
        return True

    def _reset(self) -> None:
        self._nested: NestedRun | None = None
        self._generation = newest_generation(self._runs, self._spec.sweep, self.trial_id)
        self._reported_epoch = -1
        self._pinned: tuple[int, int | None] | None = None
        self._began = time.monotonic()

    def step(self) -> dict[str, Any]:
        """Train to the end of the next epoch.

        Raises the exception of the run.
        """
        nested = self._started_run()
        while True:
            try:
                epoch = nested.next_epoch(POLL_S)
            except UnderWay:
                nested = self._restarted_run()
                continue
            except Diverged as error:
                return self._diverged(nested, error)
            if epoch is not None and epoch.ended.epoch > self._reported_epoch:
                return self._result(nested, epoch)
            if epoch is not None:
                nested.resume(epoch.ended.epoch)
            elif nested.result is not None:
                return self._final_result(nested.result)
            elif self._stop_if_asked(nested):
                return dict(DUPLICATE)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the name and step of the current checkpoint.

        If trials exchange checkpoints, pin it in storage.
        """
        step = None
        nested = self._nested
        if nested is not None and (ended := nested.paused_at) is not None:
            step = ended.step
        if self._spec.has_exchange and nested is not None:
            # On a repeated call, the run may already be paused at the end of the next epoch.
            if self._pinned is None or self._pinned[0] != self._reported_epoch:
                self._pinned = (self._reported_epoch, self._pin_checkpoint(nested, step))
            step = self._pinned[1]
        facts = {"trial": self.trial_id, "generation": self._generation, "run": self._path, "step": step}
        write_json_file(checkpoint_dir, CHECKPOINT, to_json(facts))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue the trial's run, or fork another trial's.

        A fork is a new run from the other trial's checkpoint.
        """
        facts = json.loads(Path(checkpoint_dir, CHECKPOINT).read_text())
        if facts["trial"] == self.trial_id:
            self._generation = max(facts["generation"], self._generation)
        elif facts["step"] is not None:
            runs, sweep = self._runs, self._spec.sweep
            # By its name: the sweep may have been moved since.
            facts["run"] = below(runs, run_name(sweep, facts["trial"], facts["generation"]))
            self._generation = start_generation(facts, runs, sweep=sweep, trial_id=self.trial_id, config=self.config)

    def cleanup(self) -> None:
        """Make the run save a checkpoint and end.

        So a stopped or paused trial loses nothing.
        """
        nested = self._nested
        if nested is None or self._is_hung(nested):
            return
        nested.stop("the sweep has stopped this trial")
        while not nested.join(POLL_S):
            if self._is_hung(nested):
                return
        self._nested = None

    @property
    def _runs(self) -> str:
        return runs_path(self._spec.storage, self._spec.sweep)

    @property
    def _path(self) -> str:
        return below(self._runs, run_name(self._spec.sweep, self.trial_id, self._generation))

    def _started_run(self) -> NestedRun:
        if self._nested is not None:
            self._nested.resume(self._reported_epoch)
            return self._nested
        spec = self._spec
        job = spec.make_trial_job(self.config, self.trial_id, self._generation)
        self._nested = NestedRun(job, spec.driver, spec.make_callbacks(self.config))
        return self._nested

    def _restarted_run(self) -> NestedRun:
        """Restart the run once an earlier process releases it.

        That process of this trial was lost.
        """
        assert self._nested is not None
        if time.monotonic() - self._began > HANDOVER_S:
            self._nested.next_epoch(0)
        self._nested = None
        time.sleep(POLL_S)
        return self._started_run()

    def _stop_if_asked(self, nested: NestedRun) -> bool:
        """Stop the run if the sweep ends.

        Returns whether it does. Raises `Hung` for a run without events.
        """
        self._check_hung(nested)
        try:
            reason: str | None = ray.get(self._stop_flag.reason.remote())
        except RayError:
            reason = "the sweep's driver was lost"
        if reason is None:
            return False
        nested.stop(reason)
        while not nested.join(POLL_S):
            if self._is_hung(nested):
                break
        return True

    def _join(self, nested: NestedRun) -> None:
        while not nested.join(POLL_S):
            self._check_hung(nested)

    def _check_hung(self, nested: NestedRun) -> None:
        if self._is_hung(nested):
            raise Hung(
                f"trial {self.trial_id} sent no event for hang_timeout_s={self._spec.hang_timeout_s:g} s. Raise it if "
                "steps, evaluations or saving its last checkpoint take longer.",
                trial=self.trial_id,
            )

    def _is_hung(self, nested: NestedRun) -> bool:
        return nested.is_hung(self._spec.hang_timeout_s)

    def _pin_checkpoint(self, nested: NestedRun, step: int | None) -> int | None:
        """Save the checkpoint at which the run is paused, and pin it."""
        nested.resume(self._reported_epoch)
        deadline = time.monotonic() + STORED_S
        while step is not None and (newest_stored_step(self._path) or -1) < step and time.monotonic() < deadline:
            if not nested.is_running:
                break
            time.sleep(0.05)
        return pin(self._path, at_least=step or 0)

    def _result(self, nested: NestedRun, epoch: Epoch) -> dict[str, Any]:
        ended = epoch.ended
        self._reported_epoch = ended.epoch
        is_last = ended.epoch + 1 >= nested.job.epochs
        if is_last:
            # An error at the very end is also a failure of this trial.
            self._join(nested)
            nested.next_epoch(0)
        facts = {
            "workers": epoch.workers,
            "rows_per_s": ended.rows / epoch.seconds,
            "epoch_s": epoch.seconds,
            "startup_s": epoch.startup_s,
            "resize_s": epoch.resize_s,
            "blocks": blocks_of(nested.job),
            "epochs": nested.job.epochs,
        }
        return facts | self._epoch_facts(ended, is_over=is_last, is_finished=is_last)

    def _final_result(self, result: Result) -> dict[str, Any]:
        """Return the result of a run that ended without an epoch.

        Already finished, or stopped by its callbacks.
        """
        last = _last_result(result, self._spec.metric)
        if last is None and (result.stopped or "").startswith("max_steps"):
            raise InvalidOption(
                f"the run of this trial has ended ({result.stopped}) before its first epoch, and no evaluation of it "
                f"has metric={self._spec.metric!r}. Raise max_steps, or let the train function evaluate it "
                "(worker.evaluate_with).",
                metric=self._spec.metric,
            )
        if last is None or last.epoch <= self._reported_epoch:
            return dict(DUPLICATE)
        self._reported_epoch = last.epoch
        return {"workers": 0} | self._epoch_facts(last, is_over=True, is_finished=result.is_finished)

    @property
    def _worst(self) -> float:
        """Metric of a diverged trial, which searchers avoid."""
        return math.inf if self._spec.mode == "min" else -math.inf

    def _diverged(self, nested: NestedRun, error: Diverged) -> dict[str, Any]:
        """Return the result of a run that a monitor has ended.

        It is of the epoch after the last one.
        """
        self._reported_epoch = max(self._reported_epoch + 1, nested.first_epoch)
        return {
            "workers": 0,
            self._spec.metric: self._worst,
            "epoch": self._reported_epoch + 1,
            "training_iteration": self._reported_epoch + 1,
            "run": run_name(self._spec.sweep, self.trial_id, self._generation),
            "why": str(error),
            "diverged": True,
            "finished": False,
            "done": True,
        }

    def _epoch_facts(self, ended: EpochEnded, *, is_over: bool, is_finished: bool) -> dict[str, Any]:
        spec = self._spec
        if spec.metric not in ended.metrics:
            known = ", ".join(sorted(ended.metrics)) or "none"
            raise InvalidOption(
                f"metric={spec.metric!r} was not reported at the end of epoch {ended.epoch + 1}; available "
                f"metrics: {known}. Name one of them, or have the train function commit or report {spec.metric!r}.",
                metric=spec.metric,
            )
        value = ended.metrics[spec.metric]
        diverged = not math.isfinite(value)
        return {
            **{name: each for name, each in ended.metrics.items() if name not in RESULT_FACTS},
            spec.metric: self._worst if diverged else value,
            "epoch": ended.epoch + 1,
            "training_iteration": ended.epoch + 1,
            "run": run_name(spec.sweep, self.trial_id, self._generation),
            "diverged": diverged,
            "finished": is_finished and not diverged,
            "done": is_over or diverged,
        }


def _last_result(result: Result, metric: str) -> EpochEnded | None:
    """Last epoch of a run, or its last evaluation.

    It counts if `max_steps` or `keep_best` has ended the run within an epoch.
    """
    last = result.epochs[-1] if result.epochs else None
    newest = result.evaluations[-1] if result.evaluations else None
    if newest is None or metric not in newest.metrics or (last is not None and newest.epoch <= last.epoch):
        return last
    parts: dict[str, Any] = dict.fromkeys(("seconds", "wait_s", "eval_s", "checkpoint_s"), 0.0)
    return EpochEnded(epoch=newest.epoch, step=newest.step, metrics=newest.metrics, rows=newest.rows, **parts)
