from __future__ import annotations

import os

import pytest

from forebay.data.preparation.spans.process_pool import map_unordered
from forebay.errors import PreparationFailed


def test_one_process_is_this_one() -> None:
    assert list(map_unordered(lambda _: os.getpid(), [1, 2], processes=1)) == [os.getpid()] * 2


def test_death_of_a_process_is_named() -> None:
    def die(task: int) -> int:
        if task == 1:
            os._exit(7)
        return task

    with pytest.raises(PreparationFailed, match="ended with exit code 7 in the middle of a span"):
        list(map_unordered(die, [0, 1, 2], processes=2))
