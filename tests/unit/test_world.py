"""A world that cannot be is refused."""

from __future__ import annotations

import pytest

from forebay.errors import InvalidOption
from forebay.world import World


@pytest.mark.parametrize(("rank", "size"), [(0, 0), (-1, 2), (2, 2), (0, -1)])
def test_impossible_worlds(rank: int, size: int) -> None:
    with pytest.raises(InvalidOption, match=f"rank={rank}, size={size}"):
        World(rank=rank, size=size)


def test_the_first_rank() -> None:
    assert World().is_first
    assert not World(rank=1, size=2).is_first
