"""An impossible world is refused."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.errors import InvalidOption, whole_number
from forebay.world import World


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
