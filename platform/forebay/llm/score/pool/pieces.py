"""Pieces of shards that were cut: kept until all of a shard are there, and written as one file."""

from __future__ import annotations

import pyarrow as pa

from forebay.llm.score.answer_folder import AnswerFolder
from forebay.llm.score.shards import Piece


class CutShards:
    """Tables of pieces by shard, in the memory of the driver: at most one shard for each that was cut."""

    def __init__(self, folder: AnswerFolder) -> None:
        self._folder = folder
        self._tables: dict[int, dict[int, pa.Table]] = {}

    def keep(self, piece: Piece, table: pa.Table, *, ends_shard: bool) -> None:
        """Keep the table of a piece. The last one writes the shard. Raises as `AnswerFolder.write`."""
        self._tables.setdefault(piece.shard, {})[piece.start] = table
        if ends_shard:
            tables = self._tables.pop(piece.shard)
            self._folder.write(piece.shard, pa.concat_tables([tables[start] for start in sorted(tables)]))
