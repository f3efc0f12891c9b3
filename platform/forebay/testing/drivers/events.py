"""Train function of `DriverBench`.

It logs every step, and an event may disturb it at one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from forebay.testing.drivers.counting_model import CountingModel, build_optimizer, train_step
from forebay.training.worker.worker import Worker

ATTEMPTS = "attempts"
HAPPENED = "happened"
TRAINED_ROWS = "trained_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAttempt:
    """One rank's attempt at one step.

    It has taken the optimizer's step and is about to commit.
    """

    time: float
    step: int
    rank: int
    size: int
    pid: int
    node: str

    def to_line(self) -> str:
        return f"{self.time} {self.step} {self.rank} {self.size} {self.pid} {self.node}\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        seconds, step, rank, size, pid, node = line.split(" ")
        return cls(time=float(seconds), step=int(step), rank=int(rank), size=int(size), pid=int(pid), node=node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Disturbance of a job by `event` after step `at_step`.

    It hits the last rank. See `DriverBench.job`.
    """

    at_step: int = -1
    event: str = ""


class StepRecord:
    """Log of one rank's steps.

    All ranks share the folder `log`. `disturbance` happens at its step.
    """

    def __init__(self, worker: Worker, log: str, disturbance: Disturbance, step_s: float) -> None:
        self._worker, self._log, self._disturbance, self._step_s = worker, Path(log), disturbance, step_s

    def write(self, values: object) -> None:
        """Write `values` of the present step, before its commit.

        It writes a file per step and rank, and one line.
        """
        time.sleep(self._step_s)
        step, world = self._worker.step, self._worker.world
        (self._log / f"{step:05}-{world.rank}").write_text(json.dumps(values))
        attempt = StepAttempt(
            time=time.time(), step=step, rank=world.rank, size=world.size, pid=os.getpid(), node=world.node
        )
        with (self._log / ATTEMPTS).open("ab", buffering=0) as attempts:  # One write per line: ranks share the file.
            attempts.write(attempt.to_line().encode())
        if step == self._disturbance.at_step and world.rank == world.size - 1:
            _happen(self._disturbance.event, self._log / HAPPENED)


def recording_train(worker: Worker, *, num_rows: int, log: str, disturbance: Disturbance, step_s: float) -> None:
    """Train by least squares.

    Writes per step and rank one file with the ids of its rows, and one line. Evaluations count the trained rows.
    """
    counting = CountingModel(num_rows)
    model, optimizer = worker.setup(counting, build_optimizer)
    worker.evaluate_with(lambda: {TRAINED_ROWS: float(counting.counts.detach().sum())})
    steps = StepRecord(worker, log, disturbance, step_s)
    for batch in worker.loader():
        loss = train_step(model, optimizer, batch, worker.world.size)
        steps.write([int(row) for row in batch["row"][:, 0]] if batch.weight else [])
        worker.commit(loss=loss)


def happened_at(log: Path) -> float:
    """Unix time in seconds of the event of `recording_train`."""
    return (log / HAPPENED).stat().st_mtime


def _happen(event: str, mark: Path) -> None:
    if event == "kill" and mark.exists():
        return
    mark.write_text(str(time.time()))
    if event == "raise":
        raise ValueError("boom in the train function")
    if event == "hang":
        while True:
            time.sleep(1)
    if event == "hold":
        ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock, as an extension in C may
    if event == "suspend":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    os.kill(os.getpid(), signal.SIGKILL)
