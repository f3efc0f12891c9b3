"""Plan: order of one dataset in any epoch.

Steps 3 to 5 of the order.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forebay.data.kernels.calls import order_lanes
from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.lanes import Deal, LaneEpoch, LaneRows, owned_order, shuffled_line
from forebay.data.plan.order import BlockSpan, BlockWindows, Order, PositionedRows
from forebay.data.plan.permute import Ints
from forebay.errors import InvalidOption, whole_number

PLAN_VERSION = 2
"""Part of every plan id. Raised whenever any row would come at another position."""

_FEW_ROWS = 8
"""Rows per lane below which an epoch is one permutation of all rows: lanes of few rows have few orders."""


LEAST_LANES = 16
MOST_LANES = 1024
GROUPS_PER_LANE = 32
OPEN_BYTES = 16 << 30
MOST_SHUFFLE_ROWS = 65_536
SHUFFLED_ROWS = 1 << 20
LEAST_SHUFFLE_ROWS = 4096


class Windowed(Protocol):
    """Windows over series, such as a part of `fb.Sequences`."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def windows(self) -> BlockWindows: ...


def build_plan(
    manifest: Manifest | Windowed,
    *,
    seed: int = 0,
    lanes: int | None = None,
    shuffle_rows: int | None = None,
    shuffle: bool = True,
) -> Plan:
    """Plan the order of all rows of a manifest.

    For a part of `fb.Sequences`, plan the order of its windows.

    Args:
        manifest: Row groups, from `scan`, or series, from `Sequences`. The rows of the plan are then windows.
        seed: Any integer in [0, 2**64). 0 is a seed like any other.
        lanes: Parallel streams of an epoch, constant for the run: the largest number of ranks that it can ever have. By
            default a power of two from 16 to 1024, chosen from the row groups' number and bytes (`choose_lanes`).
        shuffle_rows: Rows of a lane that are shuffled together. Bounds memory, and the distance that a row can move.
            By default 65,536, and less for more than 16 lanes (`choose_shuffle_rows`).
        shuffle: False reads each lane's share of the manifest in file order.

    Raises:
        InvalidOption: A value that can never work, or a dataset without rows.
    """
    windows: BlockWindows | None = None
    if not isinstance(manifest, Manifest):
        windows = getattr(manifest, "windows", None)
        manifest = getattr(manifest, "manifest", manifest)
    if not isinstance(manifest, Manifest):
        raise InvalidOption(f"build_plan was given {manifest!r:.200}. Give it the manifest that fb.scan() returns.")
    if manifest.num_rows == 0:
        raise InvalidOption(
            f"build_plan was given {manifest}, which has no rows. Give a dataset with rows, or leave it out."
        )
    num_lanes = choose_lanes(manifest.bytes) if lanes is None else whole_number("lanes", lanes, least=1, most=1 << 20)
    shuffled = choose_shuffle_rows(num_lanes) if shuffle_rows is None else shuffle_rows
    return Plan(
        manifest,
        seed=whole_number("seed", seed, most=(1 << 64) - 1),
        lanes=num_lanes,
        shuffle_rows=whole_number("shuffle_rows", shuffled, least=1, most=1 << 31),
        shuffle=bool(shuffle),
        windows=windows,
    )


class Plan(Order):
    """Order of the rows of one dataset.

    Built by `build_plan`. Position `p` of an epoch is row `p // lanes` of lane `p % lanes`. An epoch is a permutation
    of all rows. Memory is O(row groups), a batch costs O(its rows), and seeking costs nothing.

    Attributes:
        manifest: Row groups of the data.
        num_rows: Number of rows of an epoch.
        id: SHA-256 (hex) of everything that the order depends on.
        kept_rows: Rows of each block that belong to the dataset, int64 [blocks]. `block_rows` counts all.
        seed, lanes, shuffle_rows, shuffle: Arguments of `build_plan`, or their defaults.
        windows: Index of the windows that are its rows, alone. Empty for rows of row groups.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        seed: int,
        lanes: int,
        shuffle_rows: int,
        shuffle: bool,
        windows: BlockWindows | None = None,
    ) -> None:
        self.manifest, self.manifests = manifest, (manifest,)
        self.windows = () if windows is None else (windows,)
        self.seed, self.lanes, self.shuffle_rows, self.shuffle = seed, lanes, shuffle_rows, shuffle
        self.block_rows = np.asarray(manifest.rows, dtype=np.int64)
        self.kept_rows = np.asarray(manifest.kept_rows, dtype=np.int64)
        rows = self.kept_rows if windows is None else windows.rows
        self.num_rows = int(rows.sum())
        assert self.num_rows > 0, "build_plan() refuses a dataset without rows, and a split one without windows"
        self._has_few_rows = shuffle and self.num_rows < _FEW_ROWS * lanes
        self.owned_order = owned_order(lanes)
        self._deal = Deal(rows, seed=seed, lanes=lanes, shuffle=shuffle)
        facts = [PLAN_VERSION, manifest.id if windows is None else windows.id, seed, lanes, shuffle_rows, shuffle]
        self.id = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        self._lane_epoch = lru_cache(maxsize=2 * lanes)(self._order_lane)  # a mixture reads two epochs
        self._line = lru_cache(maxsize=2)(partial(shuffled_line, rows, seed=seed))

    def __reduce__(self) -> tuple[object, ...]:
        options = {"seed": self.seed, "lanes": self.lanes, "shuffle_rows": self.shuffle_rows, "shuffle": self.shuffle}
        return _rebuild, (self.manifest, options, self.windows[0] if self.windows else None)

    def __repr__(self) -> str:
        return (
            f"Plan({self.id[:8]}: {self.num_rows} {'windows' if self.windows else 'rows'} in "
            f"{len(self.manifest)} row groups, seed={self.seed}, "
            f"lanes={self.lanes}, shuffle_rows={self.shuffle_rows}, shuffle={self.shuffle})"
        )

    def lane_row(self, position: int, lane: int) -> int:
        """Number of rows of `lane` before `position`."""
        return max(-(-(position - lane) // self.lanes), 0)

    def rows_before(self, position: int, lanes: Sequence[int]) -> int:
        """Number of rows of `lanes`, ascending, before `position`."""
        full, rest = divmod(position, self.lanes)
        return full * len(lanes) + bisect_left(lanes, rest)

    def spans(self, epoch: int, lane: int) -> Iterator[tuple[int, int, int]]:
        """Yield (block, first need, release) in the order of need.

        Need and release are lane rows.
        """
        columns = self._lane_epoch(epoch, lane).spans()
        return zip(*(column.tolist() for column in columns), strict=True)

    def rows(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> LaneRows:
        """Rows of ascending `lanes` among positions `start` to `stop`.

        They come in position order.
        """
        count = self.rows_before(stop, lanes) - self.rows_before(start, lanes)
        block, row = np.empty((2, count), dtype=np.int64)
        owned = [(lane, self.lane_row(start, lane), self.lane_row(stop, lane)) for lane in lanes]
        # Row i of owned lane k is row i * len(lanes) + k of all these lanes. A batch has a run of such numbers.
        first = self.rows_before(start, lanes)
        ranges = [
            (low, high, low * len(lanes) + index - first) for index, (_, low, high) in enumerate(owned) if low < high
        ]
        if ranges:
            orders = [self._lane_epoch(epoch, lane) for lane, low, high in owned if low < high]
            table = np.array([order.facts for order in orders], dtype=np.uint64)
            order_lanes(table, np.array(ranges, dtype=np.int64), len(lanes), block, row)
        return LaneRows(block, self.rows_in_block(block, row))

    def rows_in_block(self, block: Ints, number: Ints) -> Ints:
        """Convert numbers among kept rows to block rows, int64 [n]."""
        kept = self.manifest.kept
        return number if kept is None else kept.mask.select(block, number)

    def positioned_rows(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> PositionedRows:
        block, row = self.rows(epoch, start, stop, lanes)
        return PositionedRows(self._positions(start, stop, lanes), block, row)

    def row_lanes(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> Ints:  # noqa: ARG002 - of the order
        return self._positions(start, stop, lanes) % self.lanes

    def block_spans(self, epoch: int, position: int, lanes: Sequence[int]) -> Iterator[BlockSpan]:
        return heapq.merge(*(self._lane_spans(epoch, position, lane) for lane in lanes))

    def window_shifts(self, epoch: int, positions: Ints, source: int = 0) -> Ints:
        shift = self.windows[source].shift_of(self.seed, epoch) if self.windows else 0
        return np.full_like(positions, shift)

    def _positions(self, start: int, stop: int, lanes: Sequence[int]) -> Ints:
        """Positions of ascending `lanes` from `start` to `stop`, int64 [n]."""
        if len(lanes) == self.lanes:
            return np.arange(start, stop, dtype=np.int64)
        rounds = np.arange(start // self.lanes, -(-stop // self.lanes), dtype=np.int64) * self.lanes
        every = (rounds[:, None] + np.asarray(lanes, dtype=np.int64)).ravel()
        return every[slice(*np.searchsorted(every, [start, stop]))]

    def _lane_spans(self, epoch: int, position: int, lane: int) -> Iterator[BlockSpan]:
        for block, need, release in self.spans(epoch, lane):
            # Lane rows `need` to `release` are at positions row * lanes + lane.
            if (span := BlockSpan(need * self.lanes + lane, release * self.lanes + lane, block)).release > position:
                yield span
                # Windows that start in a block go on in others.
                for index in self.windows:
                    yield from (span._replace(block=other) for other in index.neighbours(block))

    def _order_lane(self, epoch: int, lane: int) -> LaneEpoch:
        if self._has_few_rows:
            line = self._line(epoch=epoch)
            return LaneEpoch.of_rows(LaneRows(*(column[lane :: self.lanes].copy() for column in line)))
        return LaneEpoch.of(
            self._deal.pieces(lane),
            seed=self.seed,
            epoch=epoch,
            lane=lane,
            shuffle_rows=self.shuffle_rows,
            shuffle=self.shuffle,
        )

    def _lanes_reason(self) -> str:
        """Likely origin of the number of lanes, for errors."""
        if self.lanes != choose_lanes(self.manifest.bytes):
            return ""
        return f", the default for {len(self.manifest)} row groups with {self.manifest.num_bytes} bytes together"


def _rebuild(manifest: Manifest, options: dict[str, int], windows: BlockWindows | None) -> Plan:
    return Plan(manifest, **options, windows=windows)  # type: ignore[arg-type]


def choose_lanes(group_bytes: NDArray[np.int64]) -> int:
    """Choose the number of lanes from the row groups.

    The result is a power of two from 16 to 1024: the largest one that leaves each lane 32 row groups, and for which one
    row group per lane takes at most 16 GiB. The first batch needs a row group of every lane, so it comes after at most
    3 % of an epoch's reads. The row groups that all ranks hold open together are bounded. Small datasets have 16 lanes.
    ADR 0020 has the measurements.

    Args:
        group_bytes: Uncompressed bytes of each row group, int64 [row groups].

    >>> [choose_lanes(np.full(groups, 1 << 20)) for groups in (1, 1000, 10_000, 1_000_000)]
    [16, 16, 256, 1024]
    """
    mean_bytes = max(int(group_bytes.sum()) // len(group_bytes), 1)
    most = min(len(group_bytes) // GROUPS_PER_LANE, OPEN_BYTES // mean_bytes, MOST_LANES)
    return max(1 << max(most, 1).bit_length() - 1, LEAST_LANES)


def choose_shuffle_rows(lanes: int) -> int:
    """Choose `shuffle_rows` from the number of lanes.

    The result is 65,536 up to 16 lanes, and 1,048,576 / lanes for more, but at least 4,096. Mixing and memory depend on
    all lanes together. A shuffle has a fixed cost of some thousand rows, and smaller row groups are held completely
    anyway.

    >>> [choose_shuffle_rows(lanes) for lanes in (1, 16, 17, 64, 1024)]
    [65536, 65536, 61680, 16384, 4096]
    """
    return max(min(MOST_SHUFFLE_ROWS, SHUFFLED_ROWS // lanes), LEAST_SHUFFLE_ROWS)
