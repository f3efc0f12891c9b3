"""Event loop of a driver on Ray.

It passes events of the workers to the run, and requests of callbacks to the coordinator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.events import Event, Preempted, Request, Started
from forebay.ray_cluster.nodes import nodes_of, num_on_demand
from forebay.runtime.foreign_code import begin
from forebay.training.checkpoint.ray_store import flush_stores
from forebay.training.driver.elastic.start_watch import StartWatch
from forebay.training.driver.hang_watch import HangWatch
from forebay.training.driver.rank_stack import SilentRank, silent_ranks
from forebay.training.runs.control import Control
from forebay.training.runs.run import Run
from forebay.training.runs.timeline.cost import PRICE_ON_DEMAND

POLL_S = 0.5


def follow(run: Run, coordinator: ActorHandle, is_training: Callable[[], bool]) -> str | None:
    """Pass events and requests on until the run ends.

    Returns once its last events were taken. Returns the reason of a stop that was requested while no worker trained:
    then the run does not wait for workers. Raises `Fenced` if a later attempt has taken over, and
    `RunFailed` if the cluster never has room for the first workers.
    """
    watch = StartWatch(run)
    hangs = HangWatch(run.job.hang_timeout_s, AskedNodes(run.name), run.tell, since=time.monotonic())
    # Requests made before the first worker started: the coordinator does not know them yet.
    made_with = Request(target=run.job.start_workers if run.control.is_elastic else None)
    known = _pass_on(run.control, made_with, coordinator)
    goes_on, gave_up, num_events = True, None, 0
    while goes_on or gave_up is not None:
        run.check_fence()
        goes_on = is_training()  # read before the events are taken, so that none of the last events is missed
        taken: tuple[Sequence[Event], Request] = ray.get(
            coordinator.take.remote(POLL_S if goes_on and gave_up is None else 0)
        )
        events, request = taken
        _take_over(run.control, request, known)
        known = request
        if any(isinstance(event, Preempted) for event in events):
            # In a thread: callbacks learn of the next step while the newest checkpoint is being uploaded.
            begin(threading.Thread(target=flush_stores, args=(run.name,), name="forebay-flush", daemon=True))
        for event in events:
            watch.see(event)
            hangs.see(event)
            run.tell(_with_machines(event, run))
        known = _pass_on(run.control, known, coordinator)
        num_events += len(events)
        coordinator.noted.remote(num_events)
        watch.check()
        hangs.check()
        if gave_up is not None:
            return gave_up
        if goes_on and known.stop is not None and ray.get(coordinator.give_up.remote()):
            # One more round, for the events reported until now.
            gave_up = known.stop
    return gave_up


def _with_machines(event: Event, run: Run) -> Event:
    """Return the begin of a world with its machines on demand, for the cost of a run that began on spot ones."""
    if not isinstance(event, Started) or PRICE_ON_DEMAND not in run.job.parameters:
        return event
    return replace(event, on_demand=min(num_on_demand(), event.world_size))


def _take_over(control: Control, request: Request, known: Request) -> None:
    """Apply requests from outside to `control`.

    Requests of the run's own callbacks were passed on before.
    """
    if control.is_elastic and request.target != known.target:
        control.follow(target=request.target)
    if request.stop is not None:
        control.obey_stop(request.stop)


def _pass_on(control: Control, known: Request, coordinator: ActorHandle) -> Request:
    resized, request = control.take_resize(), control.request
    if resized is not None:
        # Also if the target is the same: a sweep that shares workers among runs then gives this run no more.
        ray.get(coordinator.set_target.remote(resized))
    if request.global_batch is not None and request.global_batch != known.global_batch:
        ray.get(coordinator.set_batch.remote(request.global_batch))
    if request.stop is not None and known.stop is None:
        ray.get(coordinator.request_stop.remote(request.stop))
    return request


class AskedNodes:
    """Asks each node of a run by a task without CPUs.

    A later call returns the answers.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._asked: list[Any] = []

    def __call__(self) -> list[SilentRank]:
        if not self._asked:
            self._asked = [self._ask(node) for node in nodes_of(self._run)]
        if not self._asked:
            return []
        ready, self._asked = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
        return [rank for answer in ready for rank in _ranks(answer)]

    def _ask(self, node: str) -> Any:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(silent_ranks).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(self._run)


def _ranks(answer: Any) -> list[SilentRank]:
    try:
        found: list[SilentRank] = ray.get(answer)
    except RayError:  # the node has left
        return []
    return found
