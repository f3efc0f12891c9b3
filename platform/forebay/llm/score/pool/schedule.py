"""Assignment of pieces to workers, also after losses. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forebay.llm.score.shards import Piece, ShardLayout

Worker = Hashable
DEATHS_BEFORE_CUT = 2
"""Times that a shard may end its worker before it is cut to find the row."""


@dataclass(slots=True)
class _Suspect:
    """Shard that ended its worker `DEATHS_BEFORE_CUT` times.

    `rows_left` are the rows that are not answered yet.
    """

    rows_left: int
    waiting: list[Piece] = field(default_factory=list)
    deaths: dict[Piece, int] = field(default_factory=dict)


class PieceSchedule:
    """Pieces of a run, handed out one by one.

    Each of the first `workers` workers begins with a contiguous range of shards. One that has finished its own takes
    the range of a worker that was lost, or else the second half of the longest range. A shard that ends its worker is
    repeated first. The second time it is cut in halves, and these again, until one row is left. A row that ends its
    worker twice is marked instead of scored.
    """

    def __init__(self, shards: Sequence[int], layout: ShardLayout, workers: int) -> None:
        self._layout = layout
        bounds = [len(shards) * number // workers for number in range(workers + 1)]
        self._unowned = [list(shards[low:high]) for low, high in pairwise(bounds) if low < high]
        self._ranges: dict[Worker, list[int]] = {}
        self._repeated: list[int] = []
        self._deaths: dict[int, int] = {}
        self._suspects: dict[int, _Suspect] = {}
        self._running: dict[Worker, Piece] = {}
        self._left = len(shards)

    @property
    def is_done(self) -> bool:
        """Whether every shard is finished."""
        return self._left == 0

    def take(self, worker: Worker) -> Piece | None:
        """Next piece for an idle `worker`.

        None: nothing is left that no other worker does.
        """
        assert worker not in self._running
        piece = self._next(worker)
        if piece is not None:
            self._running[worker] = piece
        return piece

    def finished(self, worker: Worker) -> bool:
        """Record that the piece of `worker` is done.

        Returns whether this was the last piece of its shard.
        """
        return self._completed(self._running.pop(worker))

    def lost(self, worker: Worker) -> Piece | None:
        """Record that `worker` is lost, with its piece.

        Returns the row to mark: a row that ended its worker twice.
        """
        if rest := self._ranges.pop(worker, []):
            self._unowned.insert(0, rest)
        piece = self._running.pop(worker, None)
        if piece is None:
            return None
        if piece.shard in self._suspects:
            return self._blamed(piece)
        deaths = self._deaths[piece.shard] = self._deaths.get(piece.shard, 0) + 1
        if deaths < DEATHS_BEFORE_CUT:
            self._repeated.append(piece.shard)
        else:
            self._suspects[piece.shard] = _Suspect(rows_left=piece.num_rows)
            return self._blamed(piece)
        return None

    def marked(self, piece: Piece) -> bool:
        """Record that the row of `lost` was marked.

        Returns whether this was the last piece of its shard.
        """
        return self._completed(piece)

    def is_whole(self, piece: Piece) -> bool:
        """Whether a piece is written as a whole shard.

        Otherwise it is kept until the others of its shard are there.
        """
        return piece.shard not in self._suspects

    def _next(self, worker: Worker) -> Piece | None:
        for suspect in self._suspects.values():
            if suspect.waiting:
                return suspect.waiting.pop(0)
        if self._repeated:
            return self._layout.piece(self._repeated.pop(0))
        own = self._ranges.setdefault(worker, [])
        if not own:
            own[:] = self._unowned.pop(0) if self._unowned else self._second_half()
        return self._layout.piece(own.pop(0)) if own else None

    def _second_half(self) -> list[int]:
        longest = max(self._ranges.values(), key=len)
        middle = len(longest) // 2
        taken = longest[middle:]
        del longest[middle:]
        return taken

    def _blamed(self, piece: Piece) -> Piece | None:
        """Cut a piece that ended its worker.

        One row is repeated once, and then returned.
        """
        suspect = self._suspects[piece.shard]
        if piece.num_rows > 1:
            suspect.waiting[:0] = piece.halves()
            return None
        deaths = suspect.deaths[piece] = suspect.deaths.get(piece, 0) + 1
        if deaths >= DEATHS_BEFORE_CUT:
            return piece
        suspect.waiting.insert(0, piece)
        return None

    def _completed(self, piece: Piece) -> bool:
        suspect = self._suspects.get(piece.shard)
        if suspect is not None:
            suspect.rows_left -= piece.num_rows
            if suspect.rows_left:
                return False
        self._left -= 1
        return True
