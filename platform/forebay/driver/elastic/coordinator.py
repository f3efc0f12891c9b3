"""The one place where a run's workers and its driver leave word for each other; no process of theirs depends on it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from forebay.driver.worker_error import WorkerError
from forebay.events import Commands, EpochEnded, Event, Failed, Preempted, Reported, Started
from forebay.runs.status import RunStatus, State

RATE_OVER_S = 5.0
DRIVER = "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """What the driver has not heard yet, in order, and what is asked of the run now, whoever asked.

    `count` numbers all events of the run up to these: what to give to `Coordinator.noted` once callbacks know them.
    """

    events: Sequence[Event]
    count: int
    target: int
    stop: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """How things stand between what is wanted and what is there, for whoever starts and ends workers.

    `parting` is the world size that the workers were told to part for, `parked` how many of them have done so.
    """

    target: int
    world_size: int
    parting: int | None
    parked: int
    is_ending: bool


class Coordinator:
    """Runs as a named actor without CPUs, on the driver's node; all methods are short, or wait for one thing.

    Knows nothing of Ray: workers are opaque handles. It keeps what was reported until the driver takes it, what is
    asked of the run, who belongs to the current attempt, who has parted, and how the run failed.

    A change of membership: somebody sets the target; whoever starts workers gets the next ones ready, and only then
    calls `part_for`; from then on `orders` says so, and all ranks part at the next saved commit (under Ray Train each
    calls `park`); when all have, `begin` opens the next attempt. A world that trains and shall shrink is told at once.
    """

    def __init__(self, start: RunStatus) -> None:
        self._status = start
        self._changed = asyncio.Condition()
        self._events: list[Event] = []
        self._num_events, self._num_noted = 0, 0
        self._asked_by_others = False
        self._size = start.target
        self._attempt = 1
        self._workers: dict[int, Any] = {}
        self._trains = False
        self._parting: int | None = None
        self._parked: set[int] = set()
        self._waited: set[int] = set()
        self._stop: str | None = None
        self._global_batch: int | None = None
        self._stopped: str | None = None
        self._raised: WorkerError | None = None
        self._failures = 0
        self._is_ending = self._is_done = False
        self._pace: deque[tuple[float, int]] = deque()
        self._committed_at: float | None = None

    # What workers call.

    async def report(self, event: Event) -> int:
        """Keep an event for the driver; the answer is its number."""
        async with self._changed:
            self._events.append(event)
            self._num_events += 1
            self._observe(event)
            self._changed.notify_all()
        return self._num_events

    async def orders(self) -> Commands:
        """What is asked of the workers now; rank 0 asks when it saves a commit."""
        await self.committed()
        return self._orders

    async def committed(self) -> None:
        """Rank 0 saves a commit, and knows what is asked."""
        self._committed_at = time.monotonic()
        self._status = replace(self._status, last_commit_step=self._status.step or None)

    async def changed(self, known: Commands) -> None:
        """Return once something else is asked than `known`, or the attempt is over."""
        attempt = self._attempt
        await self._until(lambda: self._orders != known or self._attempt != attempt or self._is_ending)

    async def settled_orders(self, count: int) -> Commands:
        """As `orders`, once the driver's callbacks have heard event number `count`, and all before it."""
        await self._until(lambda: self._num_noted >= count or self._is_ending)
        return await self.orders()

    async def join(self, rank: int, worker: Any) -> int | None:
        """Enter the current attempt; its number once all ranks have; None if it or the run ends before."""
        async with self._changed:
            attempt = self._attempt
            self._workers[rank] = worker
            self._changed.notify_all()
        await self._until(lambda: len(self._workers) >= self._size or self._is_ending or self._attempt != attempt)
        return None if self._is_ending or self._attempt != attempt else attempt

    async def workers(self) -> dict[int, Any]:
        """The workers of the current attempt, by rank; of one that failed, until the next begins."""
        return dict(self._workers)

    async def park(self, rank: int) -> None:
        """Rank `rank` has parted: it trains no more until the next attempt begins."""
        async with self._changed:
            self._parked.add(rank)
            self._changed.notify_all()

    async def missing(self, rank: int, wait_s: float) -> list[int]:
        """Whom `rank` has waited for in vain: the ranks that have not asked the same after `wait_s` seconds."""
        async with self._changed:
            attempt = self._attempt
            self._waited.add(rank)
            self._changed.notify_all()
        await self._until(
            lambda: len(self._waited) >= self._size or self._raised is not None or self._attempt != attempt, wait_s
        )
        return sorted(self._workers.keys() - self._waited)

    async def finished(self, stopped: str | None) -> None:
        """Rank 0's train function has returned; `stopped` says why early."""
        self._stopped, self._is_done = stopped, True

    async def raise_error(self, raised: WorkerError, attempt: int) -> None:
        """Note what a train function raised in `attempt`; the first one is the cause, whatever followed from it.

        Of an attempt that is being replaced nothing is noted: most likely it followed from the loss.
        """
        if self._raised is None and attempt == self._attempt:
            self._raised = raised

    # What the driver calls.

    async def take(self, wait_s: float) -> Updates:
        """All events since the last call; waits up to `wait_s` seconds for one, or for others to ask something."""
        await self._until(lambda: bool(self._events) or self._asked_by_others, wait_s)
        events, self._events, self._asked_by_others = self._events, [], False
        return Updates(events=events, count=self._num_events, target=self._status.target, stop=self._stop)

    async def noted(self, count: int) -> None:
        """The callbacks have heard all events up to number `count`, and what they asked for was passed on."""
        async with self._changed:
            self._num_noted = max(self._num_noted, count)
            self._changed.notify_all()

    async def stopped(self) -> str | None:
        """Why the run ended early, once it has ended."""
        return self._stopped

    async def raised(self) -> WorkerError | None:
        """What a train function raised, if one did."""
        return self._raised

    async def give_up(self) -> bool:
        """End a run that was asked to stop, where nobody trains who could commit first; whether it has ended."""
        async with self._changed:
            at_work = self._trains and len(self._parked) < self._size
            if self._stop is not None and not (at_work or self._is_done or self._raised):
                self._is_ending = True
                self._changed.notify_all()
        return self._is_ending

    async def end(self) -> dict[int, Any]:
        """The driver gives up: no attempt follows. Returns the workers to end."""
        async with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        return dict(self._workers)

    # What anybody may ask of the run: its callbacks, `forebay scale`, a sweep.

    async def set_target(self, workers: int, who: str = DRIVER) -> int:
        """Ask for another world size; the answer is what was set, within the run's bounds.

        A smaller world needs nobody who is not there yet: workers part for it at their next commit, which is the very
        one that ends an epoch if a callback asks for it there. A larger one waits for `part_for`.
        """
        async with self._changed:
            target = min(max(workers, self._status.min_workers), self._status.max_workers)
            self._asked_by_others |= who != DRIVER and target != self._status.target
            asked = target if who == DRIVER else self._status.asked
            self._status = replace(self._status, target=target, asked=asked)
            if self._trains and target < self._size:
                self._order_parting(target)
            self._changed.notify_all()
        return target

    async def target(self) -> int:
        """The world size that is asked for."""
        return self._status.target

    async def ask_stop(self, reason: str, who: str = DRIVER) -> None:
        """Ask for an end at the next saved commit. The first reason given is the one that is kept."""
        async with self._changed:
            if self._stop is None:
                self._stop = reason
                self._asked_by_others |= who != DRIVER
                self._status = replace(self._status, state="stopping")
            self._changed.notify_all()

    async def set_batch(self, rows: int) -> None:
        """Ask for another global batch from the next saved commit on."""
        async with self._changed:
            self._global_batch = rows
            self._changed.notify_all()

    async def status(self) -> RunStatus:
        """How the run stands."""
        age_s = None if self._committed_at is None else time.monotonic() - self._committed_at
        return replace(self._status, rows_per_s=self._rows_per_s(), last_commit_age_s=age_s)

    # What those call who start and end workers.

    async def view(self) -> RunView:
        """What is wanted, and what is there."""
        return RunView(
            target=self._status.target,
            world_size=self._size,
            parting=self._parting,
            parked=len(self._parked),
            is_ending=self._is_ending,
        )

    async def part_for(self, workers: int | None) -> None:
        """The next world, of `workers`, is ready: the present workers shall part. None takes that back.

        Whoever has been told already parts all the same.
        """
        async with self._changed:
            self._order_parting(workers)
            self._changed.notify_all()

    async def all_parked(self, wait_s: float) -> bool:
        """Whether every worker of the attempt has parted; waits up to `wait_s` seconds for it."""
        return await self._until(lambda: len(self._parked) >= self._size, wait_s)

    async def parked(self) -> int:
        """How many workers of the attempt have parted."""
        return len(self._parked)

    async def begin(self, workers: int) -> None:
        """Open the next attempt, of `workers`; nobody has joined it yet."""
        async with self._changed:
            self._size, self._workers = workers, {}
            self._close_attempt()

    async def may_retry(self) -> bool:
        """Whether lost workers may be replaced: not after an exception of the train function, nor when ending."""
        return self._raised is None and not self._is_ending

    async def lost_workers(self, error: str) -> None:
        """Tell of a failure that will be made good. `begin` opens the next attempt."""
        self._failures += 1
        async with self._changed:
            # Its workers stay known: a survivor that notices late still has to find out whom it lost.
            self._close_attempt()
            self._status = replace(self._status, state="failed-over")
        await self.report(Failed(error=error, failures=self._failures, will_retry=True))

    async def lost_waiting(self, error: str) -> None:
        """Tell of a lost worker that did not train yet: those who train go on, and part as they were told to."""
        self._failures += 1
        await self.report(Failed(error=error, failures=self._failures, will_retry=True))

    async def draining(self, node: str, workers: int, deadline_s: float | None) -> None:
        """Tell that `node`, with `workers` of the run on it, is about to be taken away."""
        await self.report(Preempted(node=node, workers=workers, deadline_s=deadline_s))

    def _close_attempt(self) -> None:
        """Whatever its workers still say of it, or were to do, concerns nobody any more."""
        self._attempt += 1
        self._parting, self._trains = None, False
        self._parked, self._waited = set(), set()
        self._changed.notify_all()

    @property
    def _orders(self) -> Commands:
        moves = self._parting is not None
        return Commands(stop=self._stop, target=self._parting, global_batch=self._global_batch, moves=moves)

    async def _until(self, is_so: Callable[[], bool], wait_s: float | None = None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(is_so)
        return is_so()

    def _order_parting(self, workers: int | None) -> None:
        self._parting = workers
        if workers is not None and self._status.state == "training":
            self._status = replace(self._status, state="resizing")
        elif workers is None and self._status.state == "resizing":
            self._status = replace(self._status, state="training")

    def _observe(self, event: Event) -> None:
        """Keep the status up to date."""
        match event:
            case Started():
                state: State = "stopping" if self._stop else "training"
                self._status = replace(self._status, world_size=event.world_size, epochs=event.epochs, state=state)
                self._trains = True
                self._pace.clear()
            case Reported():
                self._status = replace(self._status, step=event.step, epoch=event.epoch, position=event.position)
                self._pace.append((time.monotonic(), event.rows))
            case EpochEnded():
                self._status = replace(self._status, epoch=event.epoch + 1, position=0, step=event.step)

    def _rows_per_s(self) -> float:
        since = time.monotonic() - RATE_OVER_S
        while len(self._pace) > 1 and self._pace[0][0] < since:
            self._pace.popleft()
        if len(self._pace) < 2:
            return 0.0
        (began, before), (_, after) = self._pace[0], self._pace[-1]
        # Until now, and not until the last step: of a run that stands still, the rate sinks.
        return (after - before) / max(time.monotonic() - began, 1e-9)
