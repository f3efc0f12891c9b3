"""Jobs that start within a minute on one prefix of S3, by the waits of the product, on a simulated clock.

The store takes 5,500 requests a second and answers all others with 503. A read is some requests, one after another.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

from forebay.storage.retry import DEFAULT_POLICY, THROTTLED_ATTEMPTS, ReadPace

RATE = 5_500
LATENCY_S = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Processes that read, all from one store.

    Attributes:
        processes: Number of processes, which start within `start_s`.
        threads: Reads at once of each.
        reads: Reads of each process.
        requests: Requests of a read, one after another.
    """

    processes: int
    threads: int
    reads: int
    requests: int
    start_s: float = 60.0

    @property
    def least_s(self) -> float:
        """Time that the store needs at its limit."""
        return self.processes * self.reads * self.requests / RATE


@dataclass
class HerdCounts:
    """Counts of a simulated start."""

    requests: int = 0
    refused: int = 0
    failed_reads: int = 0
    finished_s: float = 0.0
    most_a_second: int = 0
    last_first_s: float = 0.0
    """Time at which the last process had its first read."""


class ThrottledStore:
    """Store that takes `RATE` requests a second."""

    def __init__(self) -> None:
        self._tokens, self._at = float(RATE), 0.0

    def takes(self, now: float) -> bool:
        self._tokens = min(RATE, self._tokens + (now - self._at) * RATE)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def simulate(  # noqa: C901 - the loop of events
    load: Load, *, is_paced: bool, seed: int = 0, give_up_s: float = 3600.0
) -> HerdCounts:
    """Run all reads. `is_paced=False` is the rule before: each read waits alone, at most 7 attempts."""
    draw, store, outcome = random.Random(seed), ThrottledStore(), HerdCounts()  # noqa: S311 - no secret
    now = 0.0
    paces = [ReadPace(lambda: now, draw.random) for _ in range(load.processes)]
    left = [load.reads - load.threads] * load.processes
    by_second: dict[int, int] = {}
    waiting = set(range(load.processes))
    # (time, number, process, requests done, throttled attempts, began)
    events: list[tuple[float, int, int, int, int, float]] = []
    number = 0

    def begin(process: int, at: float, throttled: int = 0) -> None:
        nonlocal number
        number, asked = number + 1, at
        if is_paced:
            at += paces[process].wait_s()
        elif throttled:
            longest = DEFAULT_POLICY.max_wait_s - DEFAULT_POLICY.first_wait_s
            at += min(DEFAULT_POLICY.first_wait_s * 2 ** (throttled - 1), longest)
            at += draw.random() * DEFAULT_POLICY.first_wait_s
        heapq.heappush(events, (at, number, process, 0, throttled, asked))

    for process in range(load.processes):
        at = draw.random() * load.start_s
        for _ in range(min(load.threads, load.reads)):
            begin(process, at)
    most = THROTTLED_ATTEMPTS * DEFAULT_POLICY.attempts if is_paced else DEFAULT_POLICY.attempts
    while events and now < give_up_s:
        now, _, process, done, throttled, began = heapq.heappop(events)
        if done == load.requests:
            paces[process].record_success()
            outcome.finished_s = now
            if process in waiting:
                waiting.remove(process)
                outcome.last_first_s = now
        else:
            outcome.requests += 1
            by_second[int(now)] = by_second.get(int(now), 0) + 1
            if store.takes(now):
                number += 1
                heapq.heappush(events, (now + LATENCY_S, number, process, done + 1, throttled, began))
                continue
            outcome.refused += 1
            paces[process].record_throttled(
                began, first_s=DEFAULT_POLICY.first_wait_s, longest_s=DEFAULT_POLICY.max_wait_s
            )
            if throttled + 1 < most:
                begin(process, now + LATENCY_S, throttled + 1)
                continue
            outcome.failed_reads += 1
        if left[process] > 0:
            left[process] -= 1
            begin(process, now)
    outcome.failed_reads += len(events)
    outcome.most_a_second = max(by_second.values())
    return outcome
