"""Place of a worker among the workers of a run."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import InvalidOption, whole_number


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
