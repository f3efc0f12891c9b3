"""Sweeps over a job that trains in a second, with optional faults in its trials."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forebay.events import EpochEnded, Event, Started
from forebay.sweep.sweep import Sweep
from forebay.testing.drivers.bench import STEPS_PER_EPOCH, DriverBench
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.job.resources import Resources
from forebay.training.runs.control import Control
from forebay.training.worker.worker import Worker

__all__ = ["MOST_EPOCHS", "STEPS_PER_EPOCH", "SmallSweeps", "UntilGrown"]

MOST_EPOCHS = 1000


class SmallSweeps:
    """Small sweeps below `folder`. `steps(key)` are the steps of trials with this `key`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sweep(self, space: dict[str, Any], **options: Any) -> Sweep:
        defaults = {"name": "tiny", "storage": str(self.folder / "sweeps"), "driver": "local"}
        return Sweep(make_job(self.folder), space, "loss", "min", **(defaults | options))

    def steps(self, key: str) -> list[int]:
        """Steps of rank 0, in order."""
        path = self.folder / f"steps-{key}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def hasten(self, key: str) -> None:
        """Remove the pause of `step_s` between steps from now on."""
        (self.folder / f"steps-{key}.hastened").touch()

    def processes(self, key: str) -> set[int]:
        """Processes that trained trials with this `key`."""
        return {int(line) for line in (self.folder / f"steps-{key}.processes").read_text().split()}

    def steps_redone(self, key: str) -> int:
        """Number of repeated steps."""
        return sum(Counter(self.steps(key)).values()) - len(set(self.steps(key)))


def make_job(folder: Path) -> Callable[..., Job]:
    """Job function. `meets` is the fault in its second epoch: `raise`, `nan`, `hang` or `kill`, once."""

    def job(
        key: str = "a",
        lr: float = 0.01,
        meets: str = "",
        step_s: float = 0.0,
        epochs: int = 2,
        checkpoint_every: int = 2,
        max_workers: int = 1,
        cpus: float = 1.0,
    ) -> Job:
        bench = DriverBench(folder / "bench")
        elastic = Elastic(min_workers=1, max_workers=max_workers) if max_workers > 1 else None
        resources = Resources(cpus=cpus)
        made = bench.job("data", epochs=epochs, checkpoint_every=checkpoint_every, elastic=elastic, resources=resources)
        log = str(folder / f"steps-{meets or key}")
        return replace(made, storage_every_s=0.0, train=partial(train, lr=lr, meets=meets, step_s=step_s, log=log))

    return job


def train(worker: Worker, *, lr: float, meets: str, step_s: float, log: str) -> None:
    """Least squares. Rank 0 logs its steps."""
    model, optimizer = worker.setup(nn.Linear(3, 1), partial(torch.optim.SGD, lr=lr))
    for batch in worker.loader():
        loss = ((model(batch["inputs"])[:, 0] - batch["label"]) ** 2).mean() * batch.weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.0 if Path(f"{log}.hastened").exists() else step_s)
        if worker.world.rank == 0:
            with Path(log).open("a") as steps:
                steps.write(f"{worker.step}\n")
            with Path(f"{log}.processes").open("a") as processes:
                processes.write(f"{os.getpid()}\n")
        if meets and worker.step == STEPS_PER_EPOCH + 3:
            meet(meets, Path(f"{log}.met"))
        worker.commit(loss=loss * float("nan") if meets == "nan" and worker.epoch else loss)


class UntilGrown:
    """Callback that ends a run of `MOST_EPOCHS` after the first epoch on two workers."""

    def __init__(self) -> None:
        self._workers = 0

    def __call__(self, event: Event, control: Control) -> None:
        if isinstance(event, Started):
            self._workers = event.world_size
        if isinstance(event, EpochEnded) and control.job_epochs == MOST_EPOCHS and self._workers == 2:
            control.stop("it has grown")


def meet(what: str, mark: Path) -> None:
    """Cause the fault. A process is killed only once."""
    if what == "raise":
        raise ValueError("boom in the train function")
    if what == "hang":
        time.sleep(1000)
    if what == "kill" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
