"""Warnings that say why workers of a world start late.

The cluster may be too small for them, or busy, or their processes are starting.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import ray

from forebay.errors import RunFailed
from forebay.events import Event, Failed, Preparing, Started
from forebay.ray_cluster.nodes import num_placed, worker_capacity
from forebay.training.job.job import Job
from forebay.training.runs.run import Run

LACK_WAIT_S = 5.0
"""A cluster that is too small for the run is reported after this time."""
STARTING_S = 5.0
"""Workers that have their place, and do not train, are reported after this time."""
FIRST_WAIT_S = 30.0
NEXT_WAIT_S = 60.0
AGAIN_S = 1.0


class StartWatch:
    """Reports that no world trains, and why.

    Ends a run whose first workers the cluster cannot hold, after the job's `room_timeout_s`. A run that has trained
    waits for the nodes that it has lost without a limit.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._is_training = self._has_trained = False
        self._since = self._fits_at = self._due = 0.0
        self._begin_wait()

    def see(self, event: Event) -> None:
        """Note the start and the end of a world."""
        if isinstance(event, Started | Failed):
            self._is_training = isinstance(event, Started)
            self._has_trained |= self._is_training
            self._begin_wait()

    def check(self) -> None:
        """Say why no world trains, if it is time.

        Raises `RunFailed` after the limit.
        """
        now = time.monotonic()
        if self._is_training or now < self._due:
            return
        self._due = now + NEXT_WAIT_S
        if self._is_too_small():
            self._run.tell(Preparing(what=self._lack(now)))
        elif now < self._since + (STARTING_S if self._is_placed() else FIRST_WAIT_S):
            self._due = min(now + AGAIN_S, self._since + FIRST_WAIT_S)
        else:
            self._fits_at = now
            self._run.tell(Preparing(what=self._waits()))

    def _begin_wait(self) -> None:
        self._since = self._fits_at = time.monotonic()
        self._due = self._since + min(LACK_WAIT_S, FIRST_WAIT_S)

    def _is_too_small(self) -> bool:
        return worker_capacity(self._run.job.resources.bundle) < self._run.job.min_workers

    def _is_placed(self) -> bool:
        return num_placed(self._run.name) >= self._run.job.min_workers

    def _lack(self, now: float) -> str:
        lack = lack_of_room(self._run.job)
        if self._has_trained:
            return f"{lack}; waiting for nodes that come back"
        left_s = self._fits_at + self._run.job.room_timeout_s - now
        if left_s <= 0:
            raise RunFailed(
                f"run {self._run.name!r} {lack}, and no node has joined for {self._run.job.room_timeout_s:g} s. Ask "
                "for less (workers=, resources=; gpus=0 trains on CPUs), add nodes, or give the job a longer "
                "room_timeout_s.",
                name=self._run.name,
                summary=lack,
            )
        self._due = now + min(NEXT_WAIT_S, left_s)
        until = datetime.now().astimezone() + timedelta(seconds=left_s)
        return f"{lack}; waiting until {until:%H:%M} for nodes that join or that an autoscaler adds"

    def _waits(self) -> str:
        job, placed = self._run.job, num_placed(self._run.name)
        if placed >= job.min_workers:
            which = "the worker is" if placed == 1 else f"{placed} workers are"
            return f"{which} starting: importing torch and the job's modules"
        free = ray.available_resources()
        share = f"{job.resources.cpus:g} CPUs and {job.resources.gpus or 0:g} GPUs"
        left = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free in the cluster"
        has = f"{placed} have their place, " if placed else ""
        missing = job.min_workers - placed
        has_room = all(free.get(kind, 0.0) >= missing * each for kind, each in job.resources.bundle.items() if each)
        why = "and Ray has not placed them yet" if has_room else "the rest is in use"
        return f"still waiting for {job.min_workers} workers of {share}; {has}{left}, {why}"


def lack_of_room(job: Job) -> str:
    """Describe what `job` needs, and what the cluster has.

    Such as `needs 4 CPUs for 2 workers; the cluster has 2 CPUs on 1 node`.
    """
    share, workers = job.resources.bundle, job.min_workers
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = (sum(each.get(kind, 0.0) for each in nodes) for kind in ("CPU", "GPU"))
    room, shows_gpus = worker_capacity(share), share["GPU"] > 0
    need = _amounts(workers * share["CPU"], workers * share["GPU"], shows_gpus=shows_gpus)
    there = _amounts(cpus, gpus, shows_gpus=shows_gpus)
    each = f" of {_amounts(share['CPU'], share['GPU'], shows_gpus=shows_gpus)}, each on one node" if workers > 1 else ""
    return (
        f"needs {need} for {workers} worker{'s' * (workers > 1)}{each}; the cluster has {there} on {len(nodes)} "
        f"node{'s' * (len(nodes) != 1)}, room for {room}"
    )


def _amounts(cpus: float, gpus: float, *, shows_gpus: bool) -> str:
    return f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if shows_gpus else "")
