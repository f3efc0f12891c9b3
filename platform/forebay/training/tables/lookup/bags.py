"""Bags of ids, whose rows are summed or averaged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forebay.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class WantedIds:
    """Wanted ids [n] of a lookup.

    They are at `positions` [n] of its ids, or None for all. `shape` is the shape of all ids.
    """

    ids: Tensor
    positions: Tensor | None
    bags: Bags | None
    shape: torch.Size

    def result(self, rows: Tensor) -> Tensor:
        """Return rows [*shape, dim] or bags [bags, dim].

        `rows` [n, dim] are of the wanted ids.
        """
        if self.bags is not None:
            return self.bags.pooled(rows, self.positions)
        if self.positions is not None:
            rows = rows.new_zeros(self.shape.numel(), rows.shape[1]).index_copy(0, self.positions, rows)
        return rows.view(*self.shape, rows.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bags:
    """`count` bags.

    `bag_of` [m] has the bag of each of m ids, and `used` [m] whether it counts.
    """

    count: int
    bag_of: Tensor
    used: Tensor
    is_mean: bool

    def pooled(self, rows: Tensor, positions: Tensor | None) -> Tensor:
        """Pool `rows` [n, dim] by bag: float32 [count, dim].

        They are of the ids at `positions` [n], or of all ids.
        """
        bag_of = self.bag_of if positions is None else self.bag_of[positions]
        total = rows.new_zeros(self.count, rows.shape[1]).index_add(0, bag_of, rows)
        if not self.is_mean:
            return total
        sizes = torch.bincount(bag_of, minlength=self.count).clamp_(min=1)
        return total / sizes.unsqueeze(1)


def require_whole(name: str, values: Tensor) -> None:
    """Check that ids, lengths or offsets are integers.

    Raises `InvalidOption`: float32 has no 16,777,217, and would look up the row before.
    """
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        kind = str(values.dtype).removeprefix("torch.")
        raise InvalidOption(
            f"{name} of a table are {kind}, and {name} are whole numbers. Give integers: a feature of ids has "
            "dtype='int64'.",
            dtype=kind,
        )


def bags_of(ids: Tensor, lengths: Tensor | None, offsets: Tensor | None, pool: str) -> Bags:
    """Return the bags of ids [n, k] or [m].

    Raises `InvalidOption` for shapes and numbers that do not fit.
    """
    if pool not in {"sum", "mean"}:
        raise InvalidOption(f"pool={pool!r} is unknown. Choose 'sum' or 'mean'.", pool=pool)
    for name, given in (("lengths", lengths), ("offsets", offsets)):
        if given is not None:
            require_whole(name, given)
    if ids.dim() == 2:
        if offsets is not None:
            raise InvalidOption(f"offsets were given with ids {list(ids.shape)}. They divide ids [m]; give lengths.")
        return _padded(ids, lengths, is_mean=pool == "mean")
    if ids.dim() != 1 or (lengths is None) == (offsets is None):
        raise InvalidOption(
            f"ids {list(ids.shape)} with pool={pool!r} are not bags. Give ids [n, k], or [m] with lengths or offsets."
        )
    if offsets is not None:
        ends = torch.cat([offsets[1:], offsets.new_tensor([len(ids)])])
        lengths = ends - offsets
        if len(offsets) and int(offsets[0]) != 0:
            raise InvalidOption(f"offsets begin with {int(offsets[0])}. The first bag begins at id 0.")
    assert lengths is not None, "one of both was given"
    if bool((lengths < 0).any()) or int(lengths.sum()) != len(ids):
        raise InvalidOption(f"the bags have {int(lengths.sum()):,} ids, and {len(ids):,} were given. Make them equal.")
    count = len(lengths)
    bag_of = torch.repeat_interleave(torch.arange(count, device=ids.device), lengths.long())
    return Bags(count=count, bag_of=bag_of, used=torch.ones_like(bag_of, dtype=torch.bool), is_mean=pool == "mean")


def _padded(ids: Tensor, lengths: Tensor | None, *, is_mean: bool) -> Bags:
    count, width = ids.shape
    bag_of = torch.arange(count, device=ids.device).repeat_interleave(width)
    used = torch.ones_like(bag_of, dtype=torch.bool)
    if lengths is not None:
        if lengths.shape != (count,) or (count and int(lengths.max()) > width) or bool((lengths < 0).any()):
            raise InvalidOption(f"lengths do not fit ids {list(ids.shape)}: give {count} numbers from 0 to {width}.")
        used = (torch.arange(width, device=ids.device) < lengths.unsqueeze(1)).reshape(-1)
    return Bags(count=count, bag_of=bag_of, used=used, is_mean=is_mean)
