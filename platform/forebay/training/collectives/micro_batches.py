"""Division of a step into passes through the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from forebay.data.loader.batch import Batch
from forebay.data.plan.order import Order
from forebay.errors import InvalidOption, whole_number
from forebay.training.collectives.collective import Collective
from forebay.world import World

LossOf = Callable[[Batch], Tensor]
"""Function that returns the loss of a batch, or of a part of one: the mean over its rows, or the sum with weights."""

Accumulating = Callable[[], AbstractContextManager[object]]
"""Opens a block in which gradients are added up on this rank and not reduced over ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """Passes of a rank's part of a global batch.

    Also how the losses of all parts become the loss of the global batch.

    Attributes:
        rows: Most rows of one pass. None: the whole part.
        weigh_by: Name of an array [rows] of the batch. The loss of a part is then a sum, and the loss of the global
            batch is the sum over all parts, divided by the sum of this array. None: the loss of a part is a mean over
            its rows, and the loss of the global batch the mean over all rows.
        scale: Factor of a part's sum, set by `over`. None without `weigh_by`.
    """

    rows: int | None = None
    weigh_by: str | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            whole_number("micro_rows", self.rows, least=1)

    def over(self, batch: Batch, collective: Collective, *, ranks: int) -> MicroBatches:
        """Weight the passes of one global batch.

        Losses are averaged over `ranks`.

        Asks all ranks.

        Raises `InvalidOption` for a batch without the array to weigh by.
        """
        if self.weigh_by is None:
            return self
        if self.weigh_by not in batch:
            raise InvalidOption(
                f"weigh_by={self.weigh_by!r} is not an array of the batch, which has {', '.join(map(repr, batch))}. "
                "Name an array with one number per row.",
                weigh_by=self.weigh_by,
            )
        # In float64: a sum of float16 numbers in their own dtype overflows at 65,504.
        own = float(batch.on_host(self.weigh_by).sum(dtype=np.float64)) if batch.weight else 0.0
        total = float(collective.all_reduce(np.array([own]))[0])
        return replace(self, scale=ranks / total if total else 0.0)

    def num_passes(self, batch: Batch, plan: Order, world: World) -> int:
        """Passes of every rank, as many as the largest part needs.

        A pure function of the plan.
        """
        if self.rows is None:
            return 1
        most = batch.num_rows if world.size == 1 else _largest_part(batch, plan, world.size)
        return max(-(-most // self.rows), 1)

    def over_ranks(
        self,
        batch: Batch,
        loss_of: LossOf,
        collective: Collective,
        plan: Order,
        accumulating: Accumulating = nullcontext,
    ) -> Tensor:
        """Call `backward()` on this rank's losses.

        Their mean over ranks is the loss of the global batch.

        All ranks call it as often. With weights, returns the loss of the global batch, the same on all ranks. Without,
        this rank's share. Both are detached.
        """
        passes = self.num_passes(batch, plan, collective.world)
        weighed = self.over(batch, collective, ranks=collective.world.size)
        share = weighed.backward(batch, loss_of, passes=passes, accumulating=accumulating)
        if self.weigh_by is None or collective.world.size == 1:
            return share
        # A share moves with the targets that this rank happens to have: 6.06 was shown for a loss of 4.94.
        total = collective.tensor_collectives().all_reduce(share.double().reshape(1))
        return (total[0] / collective.world.size).to(share.dtype)

    def backward(
        self, batch: Batch, loss_of: LossOf, *, passes: int = 1, accumulating: Accumulating = nullcontext
    ) -> Tensor:
        """Call `backward()` on the weighted loss of each pass.

        At least `passes` times.

        Returns their sum, detached.

        A rank with fewer rows than others repeats its first row with the weight 0, so that all ranks meet equally
        often.
        """
        losses = []
        parts = self.parts(batch, passes)
        for number, part in enumerate(parts):
            with accumulating() if number < len(parts) - 1 else nullcontext():
                loss = loss_of(part) * self._weight(part)
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else sum(losses[1:], start=losses[0])

    def parts(self, batch: Batch, passes: int) -> list[Batch]:
        """Passes of a rank's part, at least `passes`."""
        found = list(self._parts(batch))
        return found + [batch.take(np.zeros(1, np.int64), weight=0.0) for _ in range(passes - len(found))]

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        if self.rows is None or batch.num_rows <= self.rows:
            yield batch
            return
        for start in range(0, batch.num_rows, self.rows):
            rows = np.arange(start, min(start + self.rows, batch.num_rows))
            yield batch.take(rows, weight=batch.weight * len(rows) / batch.num_rows)

    def _weight(self, part: Batch) -> float:
        return part.weight if self.scale is None or part.weight == 0 else self.scale


def _largest_part(batch: Batch, plan: Order, world_size: int) -> int:
    """Largest number of rows of any rank in a batch."""
    owner = np.empty(plan.lanes, np.int64)
    for rank in range(world_size):
        owner[list(plan.owned_lanes(World(rank=rank, size=world_size)))] = rank
    lanes = plan.row_lanes(batch.epoch, batch.position, batch.position + batch.size, range(plan.lanes))
    return int(np.bincount(owner[lanes]).max())
