"""How many trials of a sweep train at once, and how many a searcher is asked for."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import TrialScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher

from forebay.sweep.scheduler import DeadlineScheduler

LIMITED = (BasicVariantGenerator, ConcurrencyLimiter)
"""They have a limit of their own, and Tune takes none beside it."""


def most_at_once(searcher: Any, given: int | None) -> int | None:
    """The lesser of `given` and the limit that the searcher has of its own; None where there is neither."""
    own = searcher.max_concurrent if isinstance(searcher, LIMITED) else 0
    return min((number for number in (own, given) if number), default=None)


def limit_trials(searcher: Any, scheduler: TrialScheduler, most: int | None) -> int | None:
    """Have `searcher` make no more than `most` trials at once, None for all; the answer is what Tune has to see to.

    A `DeadlineScheduler` admits trials itself. It may know all that are to come of those that are drawn at random. A
    searcher learns from results, and is asked for a few more than can train: somebody has to wait for a trial to end.
    """
    if isinstance(scheduler, DeadlineScheduler):
        most = None if isinstance(searcher, BasicVariantGenerator) or most is None else most + max(most // 2, 1)
    if isinstance(searcher, LIMITED):
        searcher.max_concurrent = most or (
            0 if isinstance(searcher, BasicVariantGenerator) else searcher.max_concurrent
        )
        return None
    return most if isinstance(searcher, Searcher) else None
