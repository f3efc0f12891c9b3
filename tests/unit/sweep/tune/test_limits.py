"""Limits on concurrent trials, by searcher and scheduler."""

from __future__ import annotations

import pytest
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher

from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.tune.search import concurrency_limit, limit_concurrency

FIFO, HURRIED = FIFOScheduler(), DeadlineScheduler(60.0)


@pytest.mark.parametrize(("own", "given", "most"), [(0, None, None), (3, None, 3), (0, 2, 2), (3, 2, 2), (1, 2, 1)])
def test_the_lesser_limit_holds(own: int, given: int | None, most: int | None) -> None:
    assert concurrency_limit(BasicVariantGenerator(max_concurrent=own), given) == most
    if own:
        assert concurrency_limit(ConcurrencyLimiter(Searcher(), own), given) == most
    assert concurrency_limit(Searcher(), given) == given


def test_random_draws_are_limited_but_where_the_scheduler_admits_them() -> None:
    drawn = BasicVariantGenerator()
    assert limit_concurrency(drawn, FIFO, 4) is None and drawn.max_concurrent == 4
    assert limit_concurrency(drawn, FIFO, None) is None and drawn.max_concurrent == 0
    assert limit_concurrency(BasicVariantGenerator(max_concurrent=2), HURRIED, 2) is None
    given = BasicVariantGenerator(max_concurrent=2)
    limit_concurrency(given, HURRIED, 2)
    assert given.max_concurrent == 0


@pytest.mark.parametrize(("most", "asked"), [(1, 2), (2, 3), (4, 6), (None, None)])
def test_a_searcher_is_asked_for_some_who_wait_for_their_turn(most: int | None, asked: int | None) -> None:
    assert limit_concurrency(Searcher(), HURRIED, most) == asked
    assert limit_concurrency(Searcher(), FIFO, most) == most
    own = ConcurrencyLimiter(Searcher(), 9)
    assert limit_concurrency(own, HURRIED, most) is None and own.max_concurrent == (asked or 9)
