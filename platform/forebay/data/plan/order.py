"""Interface of a row order over one or several datasets."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.cursor import Cursor
from forebay.data.plan.lanes import LaneRows
from forebay.data.plan.permute import Ints, derive
from forebay.errors import InvalidOption, TooManyRanks, whole_number
from forebay.world import World

Last = Literal["balance", "drop"]

_AUGMENT = 8  # Continues the uses of keys in plan/row_sampling.py.


class PositionedRows(NamedTuple):
    """Rows of blocks in position order.

    `position` in the epoch, `block` and `row` within it, each int64 [n].
    """

    position: Ints
    block: Ints
    row: Ints


class BlockSpan(NamedTuple):
    """Lifetime of a block.

    Global batches use it that end after position `need` and start before `release`.
    """

    need: int
    release: int
    block: int


class BlockWindows(Protocol):
    """Windows of a dataset, numbered by the block they start in.

    `data/windows/index.py` implements it.

    Attributes:
        id: SHA-256 (hex) of everything that the numbers depend on.
        rows: Number of windows that start in each block, int64 [blocks].
    """

    id: str
    rows: Ints

    def shift_of(self, seed: int, epoch: int) -> int:
        """Steps by which an epoch moves all windows."""

    def neighbours(self, block: int) -> list[int]:
        """Other blocks read by windows of `block`, ascending."""


class Order(ABC):
    """Pure function from (epoch, position) to rows of blocks.

    It serves any number of ranks up to its lanes.

    Laws:
    - A position of an epoch is one row. It belongs to one lane. Nothing depends on the world, on earlier calls or on
      the process. So a run continues at any position, in any world.
    - The rows of some lanes among positions come in position order.
    - Blocks are numbered over all datasets, one dataset after the other.
    - A copy made by pickle gives the same rows.

    Attributes:
        id: SHA-256 (hex) of everything that the order depends on.
        num_rows: Number of positions of an epoch.
        lanes: Number of lanes: the largest number of ranks.
        owned_order: Lanes in the order in which ranks own runs of them, int64 [lanes].
        manifests: Datasets, in the order of their blocks.
        names: Name of each dataset. Empty for the order of one dataset without a name.
        block_rows: Rows of each row group, int64 [blocks].
        continues: Row of the run up to which an earlier order had the same rows, by its id.
        windows: Index of the windows of each dataset, which are the rows of its blocks. Empty if rows are rows of row
            groups.
        seed: Seed of random numbers that belong to a row.
        repeats_rows: Whether a row may come several times in an epoch.
    """

    id: str
    num_rows: int
    lanes: int
    owned_order: Ints
    manifests: tuple[Manifest, ...]
    names: tuple[str, ...] = ()
    block_rows: Ints
    continues: Mapping[str, int] = MappingProxyType({})
    windows: tuple[BlockWindows, ...] = ()
    seed: int = 0
    repeats_rows: bool = False

    @abstractmethod
    def positioned_rows(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> PositionedRows:
        """Rows of ascending `lanes` among positions `start` to `stop`."""

    @abstractmethod
    def row_lanes(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> Ints:
        """Lane of each of the `positioned_rows`, int64 [n]."""

    @abstractmethod
    def block_spans(self, epoch: int, position: int, lanes: Sequence[int]) -> Iterator[BlockSpan]:
        """Blocks that `lanes` use from `position` on, by need.

        The spans run up to the end of the epoch.
        """

    def row_key(self, epoch: int) -> int:
        """Key of the random numbers of an epoch's rows.

        64 bits.
        """
        return derive(_AUGMENT, self.seed, epoch)

    def row_numbers(self, rows: PositionedRows) -> NDArray[np.uint64]:
        """Number of each row for `row_key`, uint64 [n].

        Each number comes once in an epoch. It counts block and row, so it is equal at any number of lanes. Where rows
        repeat, it is the position, so that copies of a row get different random numbers.
        """
        if self.repeats_rows:
            return rows.position.astype(np.uint64)
        return rows.block.astype(np.uint64) << np.uint64(32) | rows.row.astype(np.uint64)

    def accepts(self, cursor: Cursor) -> bool:
        """Whether a run can continue from `cursor`."""
        limit = self.continues.get(cursor.plan_id, -1)
        return cursor.plan_id == self.id or cursor.epoch * self.num_rows + cursor.position <= limit

    def window_shifts(self, epoch: int, positions: Ints, source: int = 0) -> Ints:  # noqa: ARG002 - of orders of windows
        """Shift of windows at `positions`, in steps, int64 [n].

        `positions` ascend, and `source` is the dataset.
        """
        return np.zeros_like(positions)

    def num_batches(self, global_batch: int, start: int = 0, *, last: Last = "balance") -> int:
        """Number of global batches left from position `start`."""
        if last not in ("balance", "drop"):
            raise InvalidOption(
                f'last={last!r}: choose "balance" (every row once) or "drop" (equal batches).', last=last
            )
        whole_number("global_batch", global_batch, least=1)
        left = self.num_rows - whole_number("start", start, most=self.num_rows)
        return left // global_batch if last == "drop" else -(-left // global_batch)

    def batch_size(self, position: int, global_batch: int, *, last: Last = "balance") -> int:
        """Number of rows of the global batch at `position`.

        0 if no batch starts there. A function of the position alone: cutting the rest of an epoch again gives the
        remaining batches of the first cut. This holds because sizes that differ by at most one still do without the
        first, larger ones.
        """
        batches = self.num_batches(global_batch, position, last=last)
        if batches == 0:
            return 0
        return global_batch if last == "drop" else -(-(self.num_rows - position) // batches)

    def batch_start(self, number: int, global_batch: int, start: int = 0, *, last: Last = "balance") -> int:
        """Position of global batch `number`, counted from `start`.

        Raises `InvalidOption` if the epoch has no such batch.
        """
        batches = self.num_batches(global_batch, start, last=last)
        number = whole_number("batch number", number, most=max(batches - 1, 0))
        if last == "drop":
            return start + number * global_batch
        # The first batches are one row larger.
        size, larger = divmod(self.num_rows - start, batches)
        return start + number * size + min(number, larger)

    def batch(
        self, epoch: int, position: int, global_batch: int, world: World | None = None, *, last: Last = "balance"
    ) -> LaneRows:
        """Rows that `world.rank` reads of one global batch.

        They come in position order. Without a world, all rows.

        Returns:
            `LaneRows(block, row)`, int64 [n] each. n may be 0 if the batch has fewer rows than there are lanes.

        Raises:
            InvalidOption: The epoch or position does not exist.
            TooManyRanks: More ranks than lanes.
        """
        epoch = whole_number("epoch", epoch)
        position = whole_number("position", position, most=self.num_rows - 1)
        size = self.batch_size(position, global_batch, last=last)
        _, block, row = self.positioned_rows(epoch, position, position + size, self.owned_lanes(world or World()))
        return LaneRows(block, row)

    def owned_run(self, world: World) -> range:
        """Range of a rank's lanes in `owned_order`.

        Raises `TooManyRanks` for more ranks than lanes.
        """
        if world.size > self.lanes:
            raise TooManyRanks(
                f"{world.size} ranks cannot share {self.lanes} lanes{self._lanes_reason()}. Run at most {self.lanes} "
                f"ranks, or build the plan with lanes={1 << (world.size - 1).bit_length()} (this changes the order).",
                world_size=world.size,
                lanes=self.lanes,
            )
        return range(world.rank * self.lanes // world.size, (world.rank + 1) * self.lanes // world.size)

    def owned_lanes(self, world: World) -> tuple[int, ...]:
        """Lanes that a rank reads, ascending.

        Raises `TooManyRanks` for more ranks than lanes.
        """
        run = self.owned_run(world)
        return tuple(sorted(self.owned_order[run.start : run.stop].tolist()))

    def _lanes_reason(self) -> str:
        """Origin of the number of lanes, for errors."""
        return ""


def order_digest(plan: Order, *, epoch: int, global_batch: int, last: Last = "balance", world_size: int = 1) -> str:
    """Return the SHA-256 (hex) of an epoch's batches.

    The digest covers the global batches in position order. Each batch adds its size (int64, little-endian), then its
    sorted rows. A row is three little-endian int64: number of the file in the manifest, row group within the file, row
    within the row group. Files of several datasets are numbered one dataset after the other. Sorting makes it a digest
    of the rows of each batch: every `world_size` gives the same one, although ranks read different parts of a batch.
    """
    digest = hashlib.sha256()
    first_files = np.cumsum([0, *(len(manifest.files) for manifest in plan.manifests)])
    files = np.concatenate([first + each.file_of for first, each in zip(first_files, plan.manifests, strict=False)])
    groups = np.concatenate([manifest.group_of for manifest in plan.manifests])
    worlds = [World(rank=rank, size=world_size) for rank in range(world_size)]
    position = 0
    while size := plan.batch_size(position, global_batch, last=last):
        parts = [plan.batch(epoch, position, global_batch, world, last=last) for world in worlds]
        block, row = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((row, block))  # Manifests are sorted by (file, row group), and so are block numbers.
        block, row = block[order], row[order]
        digest.update(np.int64(size).astype("<i8").tobytes())
        digest.update(np.stack([files[block], groups[block], row], axis=1).astype("<i8").tobytes())
        position += size
    return digest.hexdigest()
