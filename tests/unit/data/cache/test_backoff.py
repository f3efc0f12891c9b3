"""Backoff of another node, at given times."""

from __future__ import annotations

from forebay.data.cache.backoff import Backoff


def test_each_failure_skips_for_twice_as_long_up_to_ten_minutes() -> None:
    backoff, now, skipped = Backoff(), 100.0, []
    assert backoff.is_over(now)
    for _ in range(7):
        backoff = backoff.after_failure(now)
        skipped.append(backoff.skipped_until - now)
        assert not backoff.is_over(backoff.skipped_until - 0.1)
        now = backoff.skipped_until
    assert skipped == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


def test_failures_while_skipped_count_as_one() -> None:
    backoff = Backoff().after_failure(0.0)
    assert backoff.after_failure(29.9) == backoff


def test_after_an_answer_the_next_failure_is_the_first() -> None:
    backoff = Backoff().after_failure(0.0).after_failure(30.0).after_success()
    assert not backoff.is_over(89.0), "the current skip goes on"
    assert backoff.after_failure(90.0).skipped_until == 120.0
