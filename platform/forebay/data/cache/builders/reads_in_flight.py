"""Number of concurrent reads. Pure.

It follows the bandwidth-delay product of the connection to storage.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

_GAIN = 2.0
"""Reads in flight, in bandwidth-delay products, as in BBR. Half of them queue, so that a late one leaves no gap."""
_DRAIN_GAIN = 0.75
_DRAIN_EVERY_ROUNDS = 12
_ROUNDS_KEPT = 16
"""More than a drain apart: the latency without a queue is in the window whenever it is asked for."""
_LEAST_SAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBounds:
    """Bounds on the reads in flight.

    `least` to `most`, and `most_bytes` of blocks together unless `least` has more.
    """

    start: int = 8
    least: int = 4
    most: int = 128
    most_bytes: int = 1 << 30

    def divided_by(self, num_processes: int) -> ReadBounds:
        """Bounds of each of `num_processes` that share a machine."""
        return ReadBounds(
            start=-(-self.start // num_processes),
            least=-(-self.least // num_processes),
            most=-(-self.most // num_processes),
            most_bytes=self.most_bytes // num_processes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRead:
    """Read whose block is built.

    Attributes:
        began_s: When it took its slot, by any clock that goes forward.
        held_s: Seconds until another read may take its slot.
        core_s: Seconds of these in which it waited for a core or used it.
        nbytes: Bytes of the block in memory.
    """

    began_s: float
    held_s: float
    core_s: float
    nbytes: int


class ReadsInFlight:
    """Controller of the number of reads in flight.

    It learns from the times of finished reads.

    By Little's law, number / (seconds that a read holds its slot) reads end per second. Latency is the part of these
    seconds in which a read needs no core. Reads per second x least latency is the bandwidth-delay product: so many are
    on their way if none waits in a queue. Twice as many are allowed, and one for each core. So the number doubles while
    latency stays the same, stays where throughput no longer grows, and falls when latency grows without throughput.
    A wait for a core does not ask for more reads.

    A round is half as many reads as the number, all begun in it, and has their median latency. The least latency is
    that of 16 rounds. Each twelfth round has fewer reads than the product, so that a lasting queue does not hide it.
    The latency of the fewest reads is always the least one: where it has risen for another reason, the number falls to
    them and rises again.

    Source: BBR (Cardwell et al., ACM Queue 14, 2016) and TCP Vegas (Brakmo and Peterson, 1995).
    """

    def __init__(self, bounds: ReadBounds, num_cores: int = 1) -> None:
        self._bounds, self._num_cores = bounds, num_cores
        self._number = bounds.start
        self._began_s = -math.inf
        self._latencies: deque[float] = deque(maxlen=_ROUNDS_KEPT)
        self._num_rounds = 0
        self._block_bytes = 0
        self._most_bytes = 0
        self._start_samples()

    @property
    def number(self) -> int:
        """Number of reads that may be in flight."""
        return self._number

    def record(self, read: FinishedRead, *, is_limited: bool) -> None:
        """Count a finished read.

        `is_limited`: another one waits for its slot. The number may change.
        """
        self._most_bytes = max(self._most_bytes, read.nbytes)
        if read.began_s < self._began_s:
            return
        self._samples.append(read)
        self._num_limited += is_limited
        if len(self._samples) >= max(_LEAST_SAMPLES, self._number // 2):
            self._end_round()
            self._began_s = read.began_s + read.held_s
            self._start_samples()

    def _start_samples(self) -> None:
        self._samples: list[FinishedRead] = []
        self._num_limited = 0

    def _end_round(self) -> None:
        latency = median(read.held_s - read.core_s for read in self._samples)
        held_s = median(read.held_s for read in self._samples)
        if self._number <= self._bounds.least:
            self._latencies.clear()
        self._latencies.append(latency)
        self._block_bytes, self._most_bytes = self._most_bytes, 0
        if 2 * self._num_limited < len(self._samples):  # the trainer is slower: the slots were not all in use
            self._number = self._within_bounds(self._number)
            return
        self._num_rounds += 1
        product = self._number * min(self._latencies) / held_s if held_s else 0.0
        gain = _GAIN if self._num_rounds % _DRAIN_EVERY_ROUNDS else _DRAIN_GAIN
        self._number = self._within_bounds(math.ceil(gain * product) + self._num_cores)

    def _within_bounds(self, number: int) -> int:
        by_bytes = self._bounds.most_bytes // self._block_bytes if self._block_bytes else self._bounds.most
        return max(self._bounds.least, min(number, self._bounds.most, by_bytes))
