"""State shared by a run's driver and workers.

The phase of the run, the request to it, and its events.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.events import EpochEnded, Evaluated, Event, Failed, Preempted, Reported, Request, Started
from forebay.training.driver.elastic.phase import (
    Aborted,
    AtWork,
    Cause,
    Completed,
    Ended,
    Phase,
    Raised,
    Resizing,
    Starting,
    Stopping,
    TooManyFailures,
    Training,
)
from forebay.training.driver.worker_error import WorkerError
from forebay.training.runs.status import RunState, RunStatus
from forebay.training.state.known_reports import KnownReports

RATE_OVER_S = 5.0
DRIVER = "driver"
SAME_TIME_S = 0.1
"""A lost node has several workers. Their deaths are known within this time."""
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """View of a run for the controller of its workers.

    `world_size` is the size of the present world.
    """

    target: int
    world_size: int
    phase: Phase
    num_paused: int = 0

    @property
    def resize_to(self) -> int | None:
        """World size that the workers pause for, if any."""
        return self.phase.resize_to if isinstance(self.phase, Resizing) else None

    @property
    def has_paused(self) -> bool:
        """Whether every worker of the world has paused."""
        return self.num_paused >= self.world_size


@dataclass(slots=True, kw_only=True)
class Generation:
    """One world of a run.

    `number` counts them, from 1. `workers` holds the actor handle of each rank that joined, `silent` those that have
    not called `missing`, `paused` those that have paused, `lost` those whose processes are known to have died.

    `all_joined` and `all_heard` are set once by the last rank: a condition would wake all ranks for each of them.
    """

    number: int
    world_size: int
    workers: dict[int, Any] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    all_joined: asyncio.Event = field(default_factory=asyncio.Event)
    all_heard: asyncio.Event = field(default_factory=asyncio.Event)

    def join(self, rank: int, worker: Any) -> None:
        self.workers[rank] = worker
        self.silent.add(rank)
        if len(self.workers) >= self.world_size:
            self.all_joined.set()

    def hear(self, rank: int) -> None:
        self.silent.discard(rank)
        if len(self.workers) >= self.world_size and not self.silent:
            self.all_heard.set()

    def wake(self) -> None:
        """Let all ranks go that wait for others."""
        self.all_joined.set()
        self.all_heard.set()

    def closed(self) -> Generation:
        """Return the state until the next world begins.

        Its workers stay known: a survivor that notices late has to find out which one died.
        """
        self.wake()
        return Generation(
            number=self.number + 1,
            world_size=self.world_size,
            workers=self.workers,
            silent=set(self.workers),
            lost=self.lost,
        )


IsAlive = Callable[[Any], Awaitable[bool]]


async def _assume_alive(worker: Any) -> bool:  # noqa: ARG001
    return True


class Coordinator:
    """Actor that holds a run's phase, request and events.

    It is a named actor without CPUs, on the driver's node. No method computes for long. Some wait for one condition. It
    does not use Ray: worker handles are opaque to it. It keeps the events until the driver takes them, the phase of the
    run, the ranks of the present world, and the request to the run.

    A resize goes through these steps:
    1. A caller sets the target.
    2. The controller gets the next workers ready. Then it calls `resize`. A shrink of a world that trains needs no new
       worker, so `set_target` does this at once.
    3. `request` passes the new size on, and all ranks pause at the next commit. Under Ray Train each rank calls
       `pause`.
    4. When all ranks have paused, `begin` opens the next world.
    """

    def __init__(
        self,
        start: RunStatus,
        max_failures: int = 0,
        is_alive: IsAlive = _assume_alive,
        known: KnownReports | None = None,
    ) -> None:
        self._status, self._max_failures, self._is_alive = start, max_failures, is_alive
        self._known = known or KnownReports()
        self._next_look: asyncio.Future[None] | None = None
        self._looked_at = -LOOK_EVERY_S
        self._changed = asyncio.Condition()
        self._phase: Phase = Starting()
        self._generation = Generation(number=1, world_size=start.target)
        self._events: list[Event] = []
        self._num_events, self._num_noted = 0, 0
        self._num_failures, self._num_preempted = 0, 0
        self._wanted = Request(target=start.target)
        self._asked_by_others = False
        self._reported_rows: deque[tuple[float, int]] = deque()
        self._committed_at: float | None = None

    # Called by workers.

    async def report(self, *events: Event) -> int:
        """Keep events for the driver. Returns the last one's number."""
        async with self._changed:
            self._events.extend(events)
            self._num_events += len(events)
            for event in events:
                self._observe(event)
            self._changed.notify_all()
        return self._num_events

    async def request(self) -> Request:
        """Return the request to the present world.

        Rank 0 reads it at each commit.
        """
        await self.committed()
        return self._request_to_world

    async def committed(self) -> None:
        """Record that rank 0 commits and has received the request."""
        self._committed_at = time.monotonic()
        self._status = replace(self._status, last_commit_step=self._status.step or None)

    async def changed(self, known: Request) -> None:
        """Wait until the request differs from `known`.

        Returns as well once the present world is over.
        """
        number = self._generation.number
        await self._until(lambda: self._request_to_world != known or self._is_over(number))

    async def synced_request(self, count: int) -> Request:
        """Return the request once callbacks have seen event `count`.

        `count` is an event's number. Otherwise the same as `request`.
        """
        await self._until(lambda: self._num_noted >= count or self._has_ended)
        return await self.request()

    async def knows(self, report: EpochEnded | Evaluated) -> bool:
        """Return whether the driver has this report, or gets it from here."""
        return self._known.knows(report)

    async def join(self, rank: int, worker: Any) -> int | None:
        """Join the present world.

        Returns its number once all ranks have joined. None if the world or the run ends before.
        """
        generation = self._generation
        generation.join(rank, worker)
        await generation.all_joined.wait()
        return None if self._is_over(generation.number) else generation.number

    async def workers(self) -> dict[int, Any]:
        """Return the workers of the present world, by rank.

        After a failure: of the failed world, until the next one begins.
        """
        return dict(self._generation.workers)

    async def pause(self, rank: int) -> None:
        """Record that `rank` has paused.

        It does not train until the next world begins.
        """
        if isinstance(self._phase, AtWork):
            self._generation.paused.add(rank)
        if self._has_paused:
            async with self._changed:
                self._changed.notify_all()

    async def missing(self, rank: int, wait_s: float) -> list[int]:
        """Return the ranks that have not called `missing`.

        Waits up to `wait_s` seconds for them.
        """
        generation = self._generation
        generation.hear(rank)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await generation.all_heard.wait()
        return sorted(generation.silent)

    async def lost(self, wait_s: float) -> list[int]:
        """Return the ranks of the present world that have died.

        Waits up to `wait_s` seconds until one is known to have died, or all have answered. One look at all workers
        serves all ranks that ask before it begins: when each rank asked all others, one loss among 4,096 ranks cost 16
        million calls.
        """
        generation = self._generation
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                if not generation.lost and not self._has_ended:
                    self._next_look = self._next_look or asyncio.ensure_future(self._look_for_lost())
                    await asyncio.shield(self._next_look)
        return sorted(generation.lost)

    async def outlived(self) -> None:
        """Never return: the call fails when this actor ends.

        Stores of checkpoints wait for it. If each asked every second whether it is alive, 512 nodes would cost a tenth
        of its CPU.
        """
        await asyncio.Event().wait()

    async def complete(self, stopped: str | None) -> None:
        """Record that rank 0's train function has returned.

        `stopped` is the reason if it returned early.
        """
        await self._end(Completed(stopped=stopped))

    async def raise_error(self, error: WorkerError, generation: int | None = None) -> None:
        """Record an error of a worker.

        `generation` is the number of its world, or None outside of any. The first error counts as the cause, because
        later ones follow from it. Errors of a world that is being replaced are ignored: most likely they followed from
        the lost worker.
        """
        if generation in (None, self._generation.number):
            await self._end(Raised(error=error))

    # Called by the driver.

    async def take(self, wait_s: float) -> tuple[Sequence[Event], Request]:
        """Return new events in order, and the request to the run.

        Waits up to `wait_s` seconds for an event, or for a request from outside.
        """
        await self._until(lambda: bool(self._events) or self._asked_by_others, wait_s)
        events, self._events, self._asked_by_others = self._events, [], False
        return events, self._wanted

    async def noted(self, count: int) -> None:
        """Record that callbacks have seen all events up to `count`.

        Their requests were passed on as well.
        """
        async with self._changed:
            self._num_noted = max(self._num_noted, count)
            self._changed.notify_all()

    async def cause(self) -> Cause | None:
        """Return the cause of the run's end, or None."""
        return self._phase.cause if isinstance(self._phase, Ended) else None

    async def give_up(self) -> bool:
        """Abort a stopped run while no rank trains.

        No rank could save a checkpoint. Returns whether the run was aborted.
        """
        is_at_work = isinstance(self._phase, AtWork) and not self._has_paused
        if self._wanted.stop is not None and not is_at_work:
            await self._end(Aborted())
        return self._phase == Ended(cause=Aborted())

    async def abort(self) -> dict[int, Any]:
        """End the run for the driver.

        No world follows. Returns the workers to kill.
        """
        await self._end(Aborted())
        return dict(self._generation.workers)

    # Called by the run's callbacks, `forebay scale` and sweeps.

    async def set_target(self, target: int, who: str = DRIVER) -> int:
        """Ask for another world size.

        Returns the target that was set, within the run's bounds. A smaller world needs no new worker, so the ranks
        pause for it at their next commit. A request that a callback makes at the end of an epoch takes effect at the
        commit that ends the epoch. A larger world waits for `resize`.
        """
        async with self._changed:
            target = min(max(target, self._status.min_workers), self._status.max_workers)
            self._asked_by_others |= who != DRIVER and target != self._status.target
            requested = target if who == DRIVER else self._status.callback_target
            self._status = replace(self._status, target=target, callback_target=requested)
            self._wanted = replace(self._wanted, target=target)
            if target < self._generation.world_size:
                self._pause_for(target)
            self._changed.notify_all()
        return target

    async def target(self) -> int:
        """World size that is requested now."""
        return self._status.target

    async def request_stop(self, reason: str, who: str = DRIVER) -> None:
        """Ask the run to end at the next commit.

        The first reason is kept.
        """
        async with self._changed:
            if self._wanted.stop is None:
                self._wanted = replace(self._wanted, stop=reason)
                self._asked_by_others |= who != DRIVER
                if isinstance(self._phase, AtWork):
                    self._phase = Stopping()
            self._changed.notify_all()

    async def set_batch(self, rows: int) -> None:
        """Ask for another global batch from the next commit on."""
        async with self._changed:
            self._wanted = replace(self._wanted, global_batch=rows)
            self._changed.notify_all()

    async def status(self) -> RunStatus:
        """The run's status for callers from outside."""
        age_s = None if self._committed_at is None else time.monotonic() - self._committed_at
        return replace(self._status, state=self._state, rows_per_s=self._rows_per_s(), last_commit_age_s=age_s)

    # Called by the controller of the workers.

    async def view(self) -> RunView:
        """The target, the world and the phase."""
        world = self._generation
        return RunView(
            target=self._status.target,
            world_size=world.world_size,
            phase=self._phase,
            num_paused=len(world.paused),
        )

    async def resize(self, resize_to: int | None) -> None:
        """Ask the workers to pause for a world of `resize_to`.

        The next world is ready. None takes the request back. Workers that have seen the request already pause all the
        same.
        """
        async with self._changed:
            self._pause_for(resize_to)
            self._changed.notify_all()

    async def all_paused(self, wait_s: float) -> bool:
        """Whether every worker of the world has paused.

        Waits up to `wait_s` seconds for it.
        """
        return await self._until(lambda: self._has_paused, wait_s)

    async def begin(self, world_size: int) -> int:
        """Open the next world.

        No rank has joined it yet. Returns its number.
        """
        async with self._changed:
            after = self._phase.after if isinstance(self._phase, Starting) else "resize"
            self._close_generation(Starting(after=after))
            self._generation = Generation(number=self._generation.number, world_size=world_size)
            if self._has_ended:
                self._generation.wake()
        return self._generation.number

    async def record_failure(self, error: str, *, world_goes_on: bool = False, is_preempted: bool = False) -> bool:
        """Count lost workers.

        Returns whether they may be replaced. If so, the callbacks receive `Failed`. With `world_goes_on` the lost
        worker did not train yet. The others continue, and pause as requested. Without it, `begin` opens the next
        world. Returns False after the run has ended, and when there were more than `max_failures` losses. Preemptions
        do not count towards that number.
        """
        if self._has_ended:
            return False
        self._num_failures += 1
        self._num_preempted += is_preempted
        if not is_preempted and self._num_failures - self._num_preempted > self._max_failures:
            await self._end(TooManyFailures(error=error))
            return False
        if not world_goes_on:
            async with self._changed:
                self._close_generation(Starting(after="failure"))
        await self.report(Failed(error=error, failures=self._num_failures, will_retry=True))
        return True

    async def draining(self, nodes: Sequence[str], workers: int, deadline_s: float | None) -> None:
        """Report that `nodes` will be taken away.

        `workers` workers of the run are on them.
        """
        await self.report(Preempted(node=nodes[0], workers=workers, deadline_s=deadline_s, others=tuple(nodes[1:])))

    @property
    def _has_ended(self) -> bool:
        return isinstance(self._phase, Ended)

    @property
    def _has_paused(self) -> bool:
        return len(self._generation.paused) >= self._generation.world_size

    def _is_over(self, generation: int) -> bool:
        return self._has_ended or self._generation.number != generation

    @property
    def _request_to_world(self) -> Request:
        return replace(self._wanted, target=self._phase.resize_to if isinstance(self._phase, Resizing) else None)

    @property
    def _state(self) -> RunState:
        match self._phase:
            case Starting(after="failure"):
                return "failed-over"
            case Stopping() | Ended():
                return "stopping"
            case _ if self._wanted.stop is not None:
                return "stopping"
            case Starting(after="resize") | Resizing():
                return "resizing"
            case Starting():
                return "starting"
        return "training"

    async def _until(self, is_so: Callable[[], bool], wait_s: float | None = None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(is_so)
        return is_so()

    async def _end(self, cause: Cause) -> None:
        async with self._changed:
            if not self._has_ended:
                self._phase = Ended(cause=cause)
            self._generation.wake()
            self._changed.notify_all()

    def _close_generation(self, phase: Starting) -> None:
        """Close the present world.

        Later calls of its workers are ignored.
        """
        self._generation = self._generation.closed()
        if not self._has_ended:
            self._phase = phase
        self._changed.notify_all()

    def _pause_for(self, resize_to: int | None) -> None:
        """Ask a training world to pause for another one.

        An earlier request to stop has priority.
        """
        match self._phase:
            case Training() | Resizing():
                self._phase = Training() if resize_to is None else Resizing(resize_to=resize_to)

    async def _look_for_lost(self) -> None:
        """Ask all workers of the present world whether they are alive.

        Returns when one is known to have died. An earlier look may have passed over one that has died since, or wait
        for one that is busy.
        """
        await asyncio.sleep(max(self._looked_at + LOOK_EVERY_S - time.monotonic(), 0))
        self._looked_at, self._next_look, generation = time.monotonic(), None, self._generation
        is_known = asyncio.Event()

        async def ask(rank: int, worker: Any) -> None:
            if not await self._is_alive(worker):
                generation.lost.add(rank)
                is_known.set()

        asking = asyncio.gather(*(ask(rank, worker) for rank, worker in generation.workers.items()))
        asking.add_done_callback(lambda _: is_known.set())
        await is_known.wait()
        if not asking.done():
            await asyncio.sleep(SAME_TIME_S)

    def _observe(self, event: Event) -> None:
        """Update the phase, the status and the known reports from an event."""
        if isinstance(event, EpochEnded | Evaluated):
            self._known.note(event)
        match event:
            case Started():
                self._status = replace(self._status, world_size=event.world_size, epochs=event.epochs)
                if isinstance(self._phase, Starting):
                    self._phase = Training() if self._wanted.stop is None else Stopping()
                self._reported_rows.clear()
            case Reported():
                self._status = replace(self._status, step=event.step, epoch=event.epoch, position=event.position)
                self._reported_rows.append((time.monotonic(), event.rows))
            case EpochEnded():
                self._status = replace(self._status, epoch=event.epoch + 1, position=0, step=event.step)

    def _rows_per_s(self) -> float:
        since = time.monotonic() - RATE_OVER_S
        while len(self._reported_rows) > 1 and self._reported_rows[0][0] < since:
            self._reported_rows.popleft()
        if len(self._reported_rows) < 2:
            return 0.0
        (began, before), (_, after) = self._reported_rows[0], self._reported_rows[-1]
        # Up to now, and not up to the last step: so the rate falls when a run makes no progress.
        return (after - before) / max(time.monotonic() - began, 1e-9)
