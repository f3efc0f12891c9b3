"""Place of a worker among the workers of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay.errors import InvalidOption, whole_number

MOST_NAMED = 8
"""Ranks, or ranges of ranks, that a text names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Rank and size of one worker's world in a run.

    A driver creates it from explicit values.

    `rank` counts from 0 to `size - 1`, `local_rank` from 0 on each node. `node` is the id of the node. Raises
    `InvalidOption` unless `0 <= rank < size`.

    >>> World(rank=1, size=4).is_first
    False
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    node: str = ""

    def __post_init__(self) -> None:
        # As plain ints: NumPy's integers cannot be written to JSON.
        object.__setattr__(self, "rank", whole_number("rank", self.rank, least=-1))
        object.__setattr__(self, "size", whole_number("size", self.size, least=-1))
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise InvalidOption(
                f"World(rank={self.rank}, size={self.size}) does not exist. Ranks run from 0 to size - 1.",
                rank=self.rank,
                size=self.size,
            )

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which saves checkpoints and reports events."""
        return self.rank == 0


def ranks_text(noun: str, ranks: Iterable[int]) -> str:
    """Name ranks in a few words, however many they are.

    >>> ranks_text("rank", [3])
    'rank 3'
    >>> ranks_text("worker", [7, 0, 1, 2])
    'workers 0-2, 7'
    """
    spans = list[list[int]]()
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    parts = list[tuple[str, int]]()
    for first, last in spans:
        count = last - first + 1
        parts += [(f"{first}-{last}", count)] if count > 2 else [(str(rank), 1) for rank in range(first, last + 1)]
    shown, num_more = ", ".join(text for text, _ in parts[:MOST_NAMED]), sum(count for _, count in parts[MOST_NAMED:])
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    return f"{noun}{'' if is_one else 's'} {shown}{f' and {num_more} more' if num_more else ''}"
