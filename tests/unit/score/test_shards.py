from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forebay.manifest.scan import scan
from forebay.score.shards import Piece, ShardLayout
from forebay.score.source_rows import SourceRows


@given(rows=st.integers(1, 5000), shard_rows=st.integers(1, 700))
def test_shards_cover_each_row_once(rows: int, shard_rows: int) -> None:
    layout = ShardLayout(rows=rows, shard_rows=shard_rows)
    pieces = [layout.piece(shard) for shard in range(layout.num_shards)]
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(rows))
    assert all(piece.num_rows == shard_rows for piece in pieces[:-1])


def test_halves() -> None:
    first, second = Piece(shard=1, start=10, stop=13).halves()
    assert (first.start, first.stop, second.start, second.stop) == (10, 12, 12, 13)


def test_rows_of_any_range(parquet_folder: Callable[..., Path]) -> None:
    manifest = scan(str(parquet_folder({"a.parquet": [5, 1, 9], "b.parquet": [4]})))
    rows = SourceRows(manifest, ["id"])
    every = rows.read(0, 19)["id"].to_pylist()
    assert len(every) == 19
    for start, stop in np.random.default_rng(0).integers(0, 20, (40, 2)).tolist():
        if start < stop:
            assert rows.read(start, stop)["id"].to_pylist() == every[start:stop]
