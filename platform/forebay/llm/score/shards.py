"""Shards: numbered ranges of rows. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows `start` to `stop` of the source, within one shard.

    They are all rows of the shard, or a part.
    """

    shard: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    def halves(self) -> tuple[Piece, Piece]:
        """Split into two pieces.

        The first one is as long or one row longer.
        """
        middle = (self.start + self.stop + 1) // 2
        return (
            Piece(shard=self.shard, start=self.start, stop=middle),
            Piece(shard=self.shard, start=middle, stop=self.stop),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """Division of `rows` rows into shards of `shard_rows`.

    The last one may have fewer.
    """

    rows: int
    shard_rows: int

    @property
    def num_shards(self) -> int:
        return -(-self.rows // self.shard_rows)

    def piece(self, shard: int) -> Piece:
        """All rows of a shard.

        >>> ShardLayout(rows=10, shard_rows=4).piece(2)
        Piece(shard=2, start=8, stop=10)
        """
        start = shard * self.shard_rows
        return Piece(shard=shard, start=start, stop=min(start + self.shard_rows, self.rows))
