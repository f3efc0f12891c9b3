"""The plan: for any epoch and position, which rows of which blocks (steps 3 to 5 of the order)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import numpy as np

from forebay.errors import BatchTooSmall, InvalidOption, TooManyRanks, whole_number
from forebay.manifest.manifest import Manifest
from forebay.plan.lanes import LaneEpoch, LaneRows, deal
from forebay.world import World

PLAN_VERSION = 1
"""Part of every plan id: raised whenever any row would come at another position."""

Last = Literal["balance", "drop"]


def build_plan(
    manifest: Manifest, *, seed: int = 0, lanes: int = 16, window_rows: int = 65_536, shuffle: bool = True
) -> Plan:
    """Plan the order of all rows of a manifest.

    Args:
        manifest: The row groups, from `scan`.
        seed: Any integer in [0, 2**64); 0 is a seed like any other.
        lanes: Parallel streams an epoch is dealt into; a constant of the run and the most ranks it can ever have.
        window_rows: Rows of a lane that are shuffled together; bounds memory, and with it how far a row can move.
        shuffle: False reads each lane's share of the manifest in file order.

    Raises:
        InvalidOption: A value that can never work.
    """
    if not isinstance(manifest, Manifest):
        raise InvalidOption(f"build_plan was given {manifest!r:.200}. Give it the manifest that fb.scan() returns.")
    return Plan(
        manifest,
        seed=whole_number("seed", seed, most=(1 << 64) - 1),
        lanes=whole_number("lanes", lanes, least=1, most=1 << 20),
        window_rows=whole_number("window_rows", window_rows, least=1, most=1 << 31),
        shuffle=bool(shuffle),
    )


class Plan:
    """A pure function from (epoch, position) to rows. Build one with `build_plan`.

    Position `p` of an epoch is row `p // lanes` of lane `p % lanes`; an epoch is a permutation of all rows. Memory is
    O(row groups), a batch costs O(its rows), and seeking costs nothing.
    """

    def __init__(self, manifest: Manifest, *, seed: int, lanes: int, window_rows: int, shuffle: bool) -> None:
        self.manifest = manifest
        self.seed, self.lanes, self.window_rows, self.shuffle = seed, lanes, window_rows, shuffle
        rows = np.asarray(manifest.rows, dtype=np.int64)
        self.num_rows = int(rows.sum())
        assert self.num_rows > 0, "scan() refuses a data set without rows"
        self._pieces, self._lane_pieces = deal(rows, seed=seed, lanes=lanes, shuffle=shuffle)
        facts = [PLAN_VERSION, manifest.id, seed, lanes, window_rows, shuffle]
        self.id = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        self._lane_epoch = lru_cache(maxsize=lanes)(self._order_lane)

    def __reduce__(self) -> tuple[object, ...]:
        options = {"seed": self.seed, "lanes": self.lanes, "window_rows": self.window_rows, "shuffle": self.shuffle}
        return _rebuild, (self.manifest, options)

    def __repr__(self) -> str:
        return (
            f"Plan({self.id[:8]}: {self.num_rows} rows in {len(self.manifest)} row groups, seed={self.seed}, "
            f"lanes={self.lanes}, window_rows={self.window_rows}, shuffle={self.shuffle})"
        )

    def num_batches(self, global_batch: int, start: int = 0, *, last: Last = "balance") -> int:
        """Global batches from position `start` to the end of the epoch."""
        self._check_batch(global_batch, last)
        left = self.num_rows - whole_number("start", start, most=self.num_rows)
        return left // global_batch if last == "drop" else -(-left // global_batch)

    def batch_size(self, position: int, global_batch: int, *, last: Last = "balance") -> int:
        """Rows of the global batch at `position`; 0 when no batch starts there.

        A function of the position alone: cutting the rest of an epoch again gives the batches that were left of it,
        because sizes that differ by at most one still do when the first, larger ones are taken away.
        """
        batches = self.num_batches(global_batch, position, last=last)
        if batches == 0:
            return 0
        return global_batch if last == "drop" else -(-(self.num_rows - position) // batches)

    def batch(
        self, epoch: int, position: int, global_batch: int, world: World | None = None, *, last: Last = "balance"
    ) -> LaneRows:
        """The rows that `world.rank` reads of the global batch at `position`, in position order; all without a world.

        Returns:
            `LaneRows(block, row)`, int64 [n] each; n may be 0 where the batch has fewer rows than lanes.

        Raises:
            InvalidOption: No such epoch or position.
            TooManyRanks, BatchTooSmall: The world or the batch does not fit the lanes.
        """
        epoch = whole_number("epoch", epoch)
        position = whole_number("position", position, most=self.num_rows - 1)
        size = self.batch_size(position, global_batch, last=last)
        return self.rows(epoch, position, position + size, self.owned_lanes(world or World()))

    def owned_lanes(self, world: World) -> range:
        """The lanes a rank reads. Raises `TooManyRanks` when there are more ranks than lanes."""
        if world.size > self.lanes:
            raise TooManyRanks(
                f"{world.size} ranks cannot share {self.lanes} lanes. Run at most {self.lanes} ranks, "
                f"or build the plan with lanes={world.size} or more (this changes the order).",
                world_size=world.size,
                lanes=self.lanes,
            )
        return range(world.rank * self.lanes // world.size, (world.rank + 1) * self.lanes // world.size)

    def lane_row(self, position: int, lane: int) -> int:
        """How many rows of `lane` lie before `position`."""
        return max(-(-(position - lane) // self.lanes), 0)

    def rows_before(self, position: int, lanes: range) -> int:
        """How many rows of some lanes, next to each other, lie before `position`."""
        full, rest = divmod(position, self.lanes)
        return full * len(lanes) + min(max(rest - lanes.start, 0), len(lanes))

    def spans(self, epoch: int, lane: int) -> Iterator[tuple[int, int, int]]:
        """(block, first lane row that needs it, lane row at which it can be let go) in the order of need."""
        columns = self._lane_epoch(epoch, lane).spans()
        return zip(*(column.tolist() for column in columns), strict=True)

    def rows(self, epoch: int, start: int, stop: int, lanes: range) -> LaneRows:
        """The rows of some lanes, next to each other, among positions `start` to `stop`, in position order."""
        ranges = [(lane, self.lane_row(start, lane), self.lane_row(stop, lane)) for lane in lanes]
        ranges = [(lane, low, high) for lane, low, high in ranges if low < high]
        block = np.empty(sum(high - low for _, low, high in ranges), dtype=np.int64)
        row = np.empty_like(block)
        # Row i of owned lane k is row i * len(lanes) + k of all these lanes; a batch holds a run of such numbers.
        first = min((low * len(lanes) + lane - lanes.start for lane, low, _ in ranges), default=0)
        for lane, low, high in ranges:
            start = low * len(lanes) + lane - lanes.start - first
            places = slice(start, start + (high - low - 1) * len(lanes) + 1, len(lanes))
            self._lane_epoch(epoch, lane).rows(low, high, LaneRows(block[places], row[places]))
        return LaneRows(block, row)

    def _order_lane(self, epoch: int, lane: int) -> LaneEpoch:
        pieces = self._pieces.take(slice(int(self._lane_pieces[lane]), int(self._lane_pieces[lane + 1])))
        return LaneEpoch.of(
            pieces, seed=self.seed, epoch=epoch, lane=lane, window_rows=self.window_rows, shuffle=self.shuffle
        )

    def _check_batch(self, global_batch: int, last: str) -> None:
        if last not in ("balance", "drop"):
            raise InvalidOption(
                f'last={last!r}: choose "balance" (every row once) or "drop" (equal batches).', last=last
            )
        if whole_number("global_batch", global_batch) < self.lanes:
            raise BatchTooSmall(
                f"global_batch={global_batch} is less than the plan's {self.lanes} lanes. Use a global batch of "
                f"{self.lanes} or more, or build the plan with fewer lanes (this changes the order).",
                global_batch=global_batch,
                lanes=self.lanes,
            )


def _rebuild(manifest: Manifest, options: dict[str, int]) -> Plan:
    return Plan(manifest, **options)  # type: ignore[arg-type]
