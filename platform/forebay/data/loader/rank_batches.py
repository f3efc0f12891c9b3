"""Rows of one rank for each global batch, planned ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import pairwise, starmap
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from forebay.data.cache.builders.single_flight import SingleFlightPool
from forebay.data.plan.order import Last, Order, PositionedRows
from forebay.world import World

T = TypeVar("T")

_CHUNK_ROWS = 1 << 17
_CHUNK_LANE_ROWS = 1 << 10


class RankPart(NamedTuple):
    """One rank's `rows` of a global batch.

    The global batch has `size` rows and begins at `position`. `rows` are those from number `begin` on of `planned`,
    the rows of all batches that were planned together.
    """

    position: int
    size: int
    rows: PositionedRows
    planned: PositionedRows
    begin: int


class Cut(NamedTuple):
    """Division of an epoch into global batches and ranks.

    Batches of `global_batch` rows, each divided among the ranks of `world`.
    """

    global_batch: int
    last: Last
    world: World


class SerialExecutor:
    """Executor with one daemon thread.

    It calls functions one after the other.

    Not a ThreadPoolExecutor: that accepts no calls after the main thread has ended, while other threads still run.
    """

    def __init__(self) -> None:
        self._workers: SingleFlightPool[Callable[[], Any], Any] = SingleFlightPool(_call, num_threads=1)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Future of `function(*arguments)`."""
        return cast("Future[T]", self._workers.submit(partial(function, *arguments)))

    def close(self) -> None:
        """End the thread after its current call.

        Cancels the waiting calls.
        """
        self._workers.close(timeout_s=1)


def parts_in_order(plan: Order, cut: Cut, executor: SerialExecutor, *, epoch: int, position: int) -> Iterator[RankPart]:
    """Rows of this rank for every global batch.

    From `position` to the end of the epoch.

    Many batches are planned at once, at least 1,024 rows per lane, because a call has costs of its own. The first
    batch is planned alone, so that it comes early, then two, then four. So planning the next ones takes no longer than
    training on these. `executor` runs one call ahead while earlier rows are gathered. Neither holds the GIL, so the
    order adds no time to an epoch. The last call orders the lanes of the next epoch, which the plan keeps.
    """
    lanes = plan.owned_lanes(cut.world)
    most_rows = max(_CHUNK_ROWS, _CHUNK_LANE_ROWS * plan.lanes)
    batches = _batches(plan, cut, position, least_rows=1)
    planned = executor.submit(_rows, plan, epoch, batches, lanes)
    while batches:
        rows, done = planned.result(), batches
        last_position, last_size = done[-1]
        least_rows = min(2 * (last_position + last_size - done[0][0]), most_rows)
        batches = _batches(plan, cut, last_position + last_size, least_rows=least_rows)
        planned = executor.submit(_rows, plan, epoch, batches, lanes)
        if not batches:
            executor.submit(plan.positioned_rows, epoch + 1, 0, min(plan.lanes, plan.num_rows), lanes)
        bounds = np.searchsorted(rows.position, [done[0][0], *(start + size for start, size in done)]).tolist()
        for (start, size), own in zip(done, starmap(slice, pairwise(bounds)), strict=True):
            yield RankPart(start, size, PositionedRows(*(column[own] for column in rows)), rows, own.start)


def _batches(plan: Order, cut: Cut, position: int, *, least_rows: int) -> list[tuple[int, int]]:
    """(position, size) of the next global batches.

    Enough for `least_rows` rows together, or all that are left.
    """
    found, stop = [], position + least_rows
    while position < stop and (size := plan.batch_size(position, cut.global_batch, last=cut.last)):
        found.append((position, size))
        position += size
    return found


def _rows(plan: Order, epoch: int, batches: list[tuple[int, int]], lanes: tuple[int, ...]) -> PositionedRows:
    start, stop = (batches[0][0], sum(batches[-1])) if batches else (0, 0)
    return plan.positioned_rows(epoch, start, stop, lanes)


def _call(function: Callable[[], T]) -> T:
    return function()
