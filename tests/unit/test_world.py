"""An impossible world is refused."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.errors import InvalidOption, whole_number
from forebay.world import World, ranks_text


@pytest.mark.parametrize(("rank", "size"), [(0, 0), (-1, 2), (2, 2), (0, -1)])
def test_impossible_worlds(rank: int, size: int) -> None:
    with pytest.raises(InvalidOption, match=f"rank={rank}, size={size}"):
        World(rank=rank, size=size)


def test_the_first_rank() -> None:
    assert World().is_first
    assert not World(rank=1, size=2).is_first


def test_whole_numbers() -> None:
    assert type(whole_number("x", np.int8(3))) is int
    for wrong in (1.0, "1", None, True, -1, 9):
        with pytest.raises(InvalidOption, match="x=.*from 0 to 8"):
            whole_number("x", wrong, most=8)


def test_ranks_are_named_in_few_words() -> None:
    assert ranks_text("rank", [5]) == "rank 5"
    assert ranks_text("worker", [2, 1]) == "workers 1, 2"
    assert ranks_text("worker", [0, 4, 5, 6, 9]) == "workers 0, 4-6, 9"
    assert ranks_text("worker", range(4096)) == "workers 0-4095"
    assert ranks_text("rank", range(0, 4096, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2040 more"
