"""Reads in flight on simulated lines: their share of the line, and their bounds."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.builders.reads_in_flight import FinishedRead, ReadBounds, ReadsInFlight

MB = 1_000_000
GBIT_S = 125 * MB
FIXED_AT_8 = ReadBounds(start=8, least=8, most=8)


@dataclass
class SimulatedWay:
    """Way from storage: a line of `rate` bytes/s with a delay of `delay_s`, then one core that takes `core_s` a block.

    `jitter` is the mean share by which a delay is longer. `demand` bounds the reads that are wanted at once.
    """

    rate: float = GBIT_S
    delay_s: float = 0.05
    nbytes: int = MB
    core_s: float = 0.001
    jitter: float = 0.0
    demand: int = 1 << 20


@dataclass
class Simulation:
    """Simulated clock. `numbers` are those of the controller, after each block."""

    reads: ReadsInFlight
    now_s: float = 0.0
    numbers: list[int] = field(default_factory=list)
    _line_free_s: float = 0.0
    _core_free_s: float = 0.0
    _pending: list[tuple[float, int, float | None, float]] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(7))
    _count: itertools.count = field(default_factory=itertools.count)
    _num_running: int = 0

    def run(self, path: SimulatedWay, seconds: float) -> float:
        """Share of the line's rate that is reached in `seconds`."""
        start, done = self.now_s, 0
        while self.now_s < start + seconds:
            while self._num_running < min(self.reads.number, path.demand):
                self._begin(path)
            done += path.nbytes * self._next(path)
        return done / (self.now_s - start) / path.rate

    def _begin(self, path: SimulatedWay) -> None:
        self._num_running += 1
        self._line_free_s = max(self._line_free_s, self.now_s) + path.nbytes / path.rate
        more = self._random.expovariate(1 / path.jitter) if path.jitter else 0.0
        self._push(self._line_free_s + path.delay_s * (1 + more), None, self.now_s)

    def _next(self, path: SimulatedWay) -> bool:
        """Go to the next moment, when a read ends or a block is built. Returns whether it is a block."""
        self.now_s, _, fetched_s, began_s = heapq.heappop(self._pending)
        if fetched_s is None:
            self._core_free_s = max(self._core_free_s, self.now_s) + path.core_s
            self._push(self._core_free_s, self.now_s, began_s)
            return False
        held_s, core_s = self.now_s - began_s, self.now_s - fetched_s
        read = FinishedRead(began_s=began_s, held_s=held_s, core_s=core_s, nbytes=path.nbytes)
        self.reads.record(read, is_limited=path.demand > self.reads.number)
        self.numbers.append(self.reads.number)
        self._num_running -= 1
        return True

    def _push(self, at_s: float, fetched_s: float | None, began_s: float) -> None:
        heapq.heappush(self._pending, (at_s, next(self._count), fetched_s, began_s))


def simulation(bounds: ReadBounds | None = None) -> Simulation:
    return Simulation(ReadsInFlight(bounds or ReadBounds()))


LINES = [
    SimulatedWay(rate=rate * GBIT_S, nbytes=megabytes * MB, delay_s=delay_s, jitter=jitter, core_s=megabytes * 1e-4)
    for rate, megabytes, delay_s, jitter in itertools.product((1, 10), (1, 4, 16), (0.01, 0.05, 0.2), (0.0, 0.5))
]


def product_of(path: SimulatedWay) -> float:
    return path.rate * (path.delay_s * (1 + path.jitter) + path.core_s) / path.nbytes + 1


@pytest.mark.parametrize("path", LINES, ids=str)
def test_the_line_is_full_wherever_the_bounds_allow_it(path: SimulatedWay) -> None:
    auto, fixed = simulation(), simulation(FIXED_AT_8)
    of_epoch, at_8 = auto.run(path, 20.0), fixed.run(path, 20.0)
    product = product_of(path)
    assert auto.run(path, 20.0) >= 0.9 * min(1.0, 128 / product)
    assert of_epoch >= 0.9 * at_8
    assert sum(auto.numbers) / len(auto.numbers) <= max(16.0, 3 * product), "not many more than fill the line"


@pytest.mark.parametrize("path", [path for path in LINES if path.rate == GBIT_S], ids=str)
def test_local_names_on_a_distant_disk_fill_the_line_too(path: SimulatedWay) -> None:
    """NFS and FUSE mounts have local names."""
    auto, fixed = simulation(DataWorkers().for_local_files().read_bounds), simulation(FIXED_AT_8)
    of_epoch, at_8 = auto.run(path, 20.0), fixed.run(path, 20.0)
    assert auto.run(path, 20.0) >= 0.9 * min(1.0, 128 / product_of(path))
    assert of_epoch >= 0.9 * at_8


@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_fewer_reads_when_the_line_shrinks_and_more_when_it_grows(jitter: float) -> None:
    wide, narrow = SimulatedWay(delay_s=0.2, jitter=jitter), SimulatedWay(delay_s=0.2, jitter=jitter, rate=GBIT_S / 8)
    auto = simulation()
    auto.run(wide, 20.0)
    assert auto.reads.number > 20
    auto.run(narrow, 20.0)  # what was on its way keeps the line busy
    assert auto.run(narrow, 20.0) >= 0.9
    assert auto.reads.number <= 3 * product_of(narrow)
    auto.run(wide, 5.0)
    assert auto.run(wide, 20.0) >= 0.9


@pytest.mark.parametrize("delays_s", [(0.02, 0.2), (0.2, 0.02)])
def test_the_line_is_full_again_after_its_delay_has_changed(delays_s: tuple[float, float]) -> None:
    auto = simulation()
    auto.run(SimulatedWay(delay_s=delays_s[0], jitter=0.2), 20.0)
    auto.run(SimulatedWay(delay_s=delays_s[1], jitter=0.2), 5.0)
    assert auto.run(SimulatedWay(delay_s=delays_s[1], jitter=0.2), 20.0) >= 0.9


def test_a_busy_core_is_no_reason_for_more_reads() -> None:
    busy = SimulatedWay(rate=10 * GBIT_S, delay_s=0.01, core_s=0.02)
    auto = simulation()
    assert auto.run(busy, 30.0) * busy.rate == pytest.approx(busy.nbytes / busy.core_s, rel=0.02)
    assert auto.reads.number <= 4


def test_reads_that_nobody_waits_for_do_not_raise_the_number() -> None:
    auto = simulation()
    auto.run(SimulatedWay(delay_s=0.2, demand=6), 20.0)
    assert set(auto.numbers) == {8}


@pytest.mark.parametrize(("megabytes", "most"), [(16, 67), (64, 16), (1000, 4)])
def test_blocks_in_flight_stay_within_their_memory(megabytes: int, most: int) -> None:
    auto = simulation()
    auto.run(SimulatedWay(rate=100 * GBIT_S, delay_s=0.5, nbytes=megabytes * MB), 30.0)
    assert auto.reads.number == most


blocks = st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 1.0), st.integers(0, 1 << 40), st.booleans())


@given(st.lists(blocks, max_size=400), st.integers(1, 3), st.integers(1, 40))
def test_no_times_and_sizes_lead_out_of_the_bounds(found: list[Any], least: int, more: int) -> None:
    bounds = ReadBounds(start=least, least=least, most=least + more)
    reads, now_s = ReadsInFlight(bounds), 0.0
    for took_s, share, nbytes, is_limited in found:
        now_s += took_s
        read = FinishedRead(began_s=now_s - took_s, held_s=took_s, core_s=share * took_s, nbytes=nbytes)
        reads.record(read, is_limited=is_limited)
        assert bounds.least <= reads.number <= bounds.most


def test_a_fixed_number_stays() -> None:
    fixed = simulation(ReadBounds(start=3, least=3, most=3))
    fixed.run(SimulatedWay(nbytes=1 << 40, rate=1 << 42), 20.0)
    assert set(fixed.numbers) == {3}


def test_processes_of_a_machine_share_the_bounds() -> None:
    assert ReadBounds().divided_by(3) == ReadBounds(start=3, least=2, most=43, most_bytes=(1 << 30) // 3)
