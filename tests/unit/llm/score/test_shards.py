from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.llm.score.shards import Piece, ShardLayout


@given(rows=st.integers(1, 5000), shard_rows=st.integers(1, 700))
def test_shards_cover_each_row_once(rows: int, shard_rows: int) -> None:
    layout = ShardLayout(rows=rows, shard_rows=shard_rows)
    pieces = [layout.piece(shard) for shard in range(layout.num_shards)]
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(rows))
    assert all(piece.num_rows == shard_rows for piece in pieces[:-1])


def test_halves() -> None:
    first, second = Piece(shard=1, start=10, stop=13).halves()
    assert (first.start, first.stop, second.start, second.stop) == (10, 12, 12, 13)
