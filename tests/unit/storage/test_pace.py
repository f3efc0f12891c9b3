"""Pace after "slow down": shared by the reads of a process, random, and forgotten."""

from __future__ import annotations

import pytest
from studies.data_plane.herd import RATE, Load, simulate

from forebay.storage.retry import ReadPace, as_refusal, is_throttled, pace_of

FIRST = {"first_s": 0.2, "longest_s": 5.0}


@pytest.mark.parametrize(
    "text",
    [
        "When reading information for key 'a': AWS Error SLOW_DOWN during HeadObject operation: Please reduce",
        "AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body.",
        "429, message='Too Many Requests', url='https://store/x'",
        "429 Client Error: Too Many Requests for url: https://huggingface.co/x",
        "The server is busy. ErrorCode:ServerBusy",
        "google::cloud::Status(RESOURCE_EXHAUSTED: rateLimitExceeded)",
    ],
)
def test_texts_of_stores_that_say_slow_down(text: str) -> None:
    assert is_throttled(OSError(text))


@pytest.mark.parametrize(
    "text",
    [
        "connection reset by peer",
        "no answer within 60 s",
        "AWS Error (HTTP status 500)",
        "When reading information for key 'ExpiredToken/SlowDown.parquet' in bucket 'Throttled': AWS Error NETWORK",
        "500 Server Error for url: https://store/ServerBusy/InvalidToken/a.parquet",
    ],
)
def test_other_failures_are_none(text: str) -> None:
    assert not is_throttled(OSError(text))
    assert as_refusal(OSError(text)) is None


def test_answers_to_attempts_of_one_moment_count_once_and_successes_ease() -> None:
    now = 0.0
    pace = ReadPace(lambda: now, lambda: 0.5)
    assert pace.wait_s() == 0.0
    for _ in range(64):
        pace.record_throttled(-1.0, **FIRST)
    pace.record_throttled(-1.0, **FIRST)
    assert pace.wait_s() == 0.2
    now = 1.0
    for _ in range(20):
        pace.record_throttled(now, **FIRST)
        now += 1
    assert pace.mean_s == 5.0, "at most"
    for _ in range(64):
        pace.record_success()
    assert pace.mean_s == 5.0
    for _ in range(20):
        now += 20
        pace.record_success()
    assert pace.wait_s() == 0.0


def test_stores_have_paces_of_their_own() -> None:
    assert pace_of("row group 3 of s3://a/x/y.parquet") is pace_of("s3://a/z?region=e")
    assert pace_of("s3://a/x") is not pace_of("s3://b/x")


def test_jobs_that_start_together_are_served_and_send_few_requests_in_vain() -> None:
    load = Load(processes=600, threads=8, reads=60, requests=4, start_s=5.0)
    before, now = simulate(load, is_paced=False), simulate(load, is_paced=True)
    assert before.failed_reads > 100, "the load is one that matters"
    assert now.failed_reads == 0
    assert now.refused < before.refused / 2
    assert now.finished_s < 3 * load.least_s
    assert now.most_a_second < 4 * RATE
