from __future__ import annotations

import pytest

from forebay.errors import BadJob
from forebay.training.job.coercion import coerce, name_of_type
from forebay.training.job.duration import Seconds


@pytest.mark.parametrize(
    ("word", "seconds"),
    [
        *(("90s", 90), ("10m", 600), ("10min", 600), ("1h30m", 5400), ("1h 30m 5s", 5405), ("1.5h", 5400)),
        *(("2d", 172_800), ("45", 45), ("0.5", 0.5), (30, 30), (2.5, 2.5)),
    ],
)
def test_a_time_as_people_write_it(word: object, seconds: float) -> None:
    assert coerce("deadline", word, Seconds) == seconds


@pytest.mark.parametrize("word", ["", "soon", "10 minutes", "-5s", "1h30", "5s?", "nan", "inf", True, float("inf"), -1])
def test_what_is_no_time(word: object) -> None:
    with pytest.raises(BadJob, match=r"deadline=.* is not of type Seconds"):
        coerce("deadline", word, Seconds)


def test_it_may_be_left_out() -> None:
    assert coerce("deadline", "none", Seconds | None) is None
    assert coerce("deadline", "2m", Seconds | None) == 120
    assert name_of_type(Seconds | None) == "Seconds | None"
