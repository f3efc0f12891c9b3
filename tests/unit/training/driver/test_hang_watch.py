"""The driver looks for silent ranks when a run of several reports nothing, less and less often."""

from __future__ import annotations

from dataclasses import replace

from tests.waiting import SetClock

from forebay.events import Event, Failed, Started, Warned
from forebay.training.driver.hang_watch import HangWatch
from forebay.training.driver.rank_stack import SilentRank


def started(size: int) -> Started:
    return Started(name="ctr", world_size=size, epochs=1, num_batches=8)


def test_a_silent_rank_is_told_once_for_each_silence() -> None:
    clock, told, looks, found = SetClock(), list[Event](), list[float](), [list[SilentRank]()]

    def look() -> list[SilentRank]:
        looks.append(clock.now)
        return found[0]

    watch = HangWatch(100.0, look, told.append, clock)
    silent = SilentRank(rank=1, step=5, seconds=80.0, does="holds the interpreter's lock in job.py:24 in train")

    def at(second: float) -> None:
        clock.now = second
        watch.check()

    at(1000.0)
    assert looks == [], "before it trains"
    watch.see(started(1))
    at(2000.0)
    assert looks == [], "nobody waits for a single worker"
    watch.see(started(2))
    watch.see(Warned(reason="rank 0 waits", step=5))
    at(2079.0)
    assert looks == []
    at(2080.0)
    found[0] = [silent]
    at(2081.0)
    assert (looks, told) == ([2080.0], []), "not all the time"
    at(2085.0)
    at(2095.0)
    at(2114.0)
    at(2115.0)
    assert looks == [2080.0, 2085.0, 2095.0, 2115.0]
    reason = "rank 1 has taken no step for 80 s and holds the interpreter's lock in job.py:24 in train"
    assert told == [Warned(reason=reason, step=5, rank=1)], "once"
    watch.see(started(2))
    at(2200.0)
    assert len(told) == 2, "another silence"
    watch.see(started(2))
    at(2279.0)
    at(2280.0)
    assert len(told) == 3
    num_looks = len(looks)
    watch.see(Failed(error="lost worker 1", failures=1, will_retry=True))
    at(2900.0)
    assert len(looks) == num_looks, "until the next world begins"
    watch.see(started(2))
    found[0] = [replace(silent, seconds=701.0)]
    at(2980.0)
    assert len(told) == 3, "a process of the world that failed"
    found[0] = [replace(silent, seconds=86.0)]
    at(2985.0)
    assert len(told) == 4, "silent before the driver heard that its world began"


def test_ranks_of_an_earlier_driver_are_not_told() -> None:
    clock, told, found = SetClock(), list[Event](), list[SilentRank]()
    watch = HangWatch(100.0, lambda: found, told.append, clock, since=1000.0)
    watch.see(started(2))
    clock.now = 1090.0
    for seconds in (91.0, 90.0):
        found[:] = [SilentRank(rank=1, step=5, seconds=seconds, does="is stopped")]
        watch.look_now()
        assert len(told) == (seconds == 90.0)


def test_a_silent_rank_is_told_before_the_world_ends() -> None:
    """On a busy machine the others may give up before it was time to look."""
    clock, told = SetClock(), list[Event]()
    silent = SilentRank(rank=1, step=5, seconds=70.0, does="holds the interpreter's lock in job.py:24 in train")
    watch = HangWatch(100.0, lambda: [silent], told.append, clock)
    watch.look_now()
    assert told == [], "before it trains"
    clock.now = 1000.0
    watch.see(started(2))
    clock.now = 1075.0
    watch.check()
    assert told == []
    watch.look_now()
    watch.look_now()
    assert told == [Warned(reason=silent.text, step=5, rank=1)]
