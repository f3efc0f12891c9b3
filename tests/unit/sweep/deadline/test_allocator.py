from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from forebay.sweep.deadline.allocator import WorkerAllocator, plan_resizes
from forebay.sweep.deadline.trial_workers import TrialAllocation

SLOTS = 8


def run(target: int, world: int | None = None, low: int = 1, high: int = SLOTS) -> TrialAllocation:
    return TrialAllocation(
        target=target, world_size=target if world is None else world, min_workers=low, max_workers=high
    )


class AllocatedRuns:
    """Runs whose workers come and go as the test says."""

    def __init__(self, **allocations: TrialAllocation) -> None:
        self.there: dict[str, TrialAllocation] = dict(allocations)
        self.asked: list[tuple[str, int]] = []
        self.ended: list[str] = []

    def allocations(self) -> Mapping[str, TrialAllocation]:
        return dict(self.there)

    def resize(self, trial_id: str, workers: int) -> None:
        self.asked.append((trial_id, workers))
        was = self.there[trial_id]
        self.there[trial_id] = run(workers, was.world_size, was.min_workers, was.max_workers)

    def stop(self, trial_id: str, reason: str) -> None:
        self.ended.append(trial_id)

    def settle(self, trial_id: str) -> None:
        self.there[trial_id] = run(self.there[trial_id].target)

    @property
    def occupied(self) -> int:
        return sum(each.occupied for each in self.there.values())


def test_a_worker_is_given_on_only_once_it_is_free():
    runs = AllocatedRuns(a=run(4), b=run(4))
    target_workers = {"a": 7, "b": 1}
    shrink, grow = plan_resizes(target_workers, runs.allocations(), SLOTS)
    assert (shrink, grow) == ({"b": 1}, {})
    runs.resize("b", 1)
    assert plan_resizes(target_workers, runs.allocations(), SLOTS) == ({}, {})
    runs.settle("b")
    assert plan_resizes(target_workers, runs.allocations(), SLOTS) == ({}, {"a": 7})


def test_it_grows_by_what_there_is_when_nothing_more_will_come():
    assert plan_resizes({"a": 8}, {"a": run(2)}, 6) == ({}, {"a": 6})


def test_a_run_that_is_ending_still_has_its_workers():
    allocations = {"a": run(1), "gone": run(7)}
    assert plan_resizes({"a": 8}, allocations, SLOTS) == ({}, {})
    assert plan_resizes({"a": 8}, {"a": run(1)}, SLOTS) == ({}, {"a": 8})


def test_what_is_reserved_for_a_run_that_begins_is_left_free():
    assert plan_resizes({"a": 8, "new": 1}, {"a": run(1)}, SLOTS, reserved=1) == ({}, {"a": 7})


def test_a_run_that_is_shrinking_is_not_asked_to_grow():
    assert plan_resizes({"a": 4}, {"a": run(2, world=4)}, SLOTS) == ({}, {})


runs_of_trials = st.dictionaries(st.sampled_from("abcde"), st.builds(run, st.integers(1, 4), st.integers(0, 4)))


@given(
    runs_of_trials, st.dictionaries(st.sampled_from("abcde"), st.integers(0, 8)), st.integers(1, 16), st.integers(0, 3)
)
def test_moves_never_ask_for_more_than_there_is(allocations, target_workers, slots, reserved):
    shrink, grow = plan_resizes(target_workers, allocations, slots, reserved)
    occupied = sum(each.occupied for each in allocations.values())
    gained = sum(workers - allocations[trial_id].target for trial_id, workers in grow.items())
    assert not grow or occupied + reserved + gained <= slots
    assert all(workers < allocations[trial_id].target for trial_id, workers in shrink.items())
    assert all(allocations[trial_id].target < workers <= target_workers[trial_id] for trial_id, workers in grow.items())


def test_without_shares_all_trials_have_an_even_part():
    runs = AllocatedRuns(a=run(1), b=run(1))
    allotting = WorkerAllocator(runs, lambda: SLOTS, scheduler=object())
    allotting.turn(["a", "b"])
    assert runs.asked == [("a", 4), ("b", 4)]


def test_a_trial_that_begins_gets_room_from_the_others():
    runs = AllocatedRuns(a=run(4), b=run(4))
    allotting = WorkerAllocator(runs, lambda: SLOTS)
    allotting.turn(["a", "b", "new"])
    assert runs.asked == [("a", 3), ("b", 3)]
    for name in "ab":
        runs.settle(name)
    assert runs.occupied < SLOTS


def test_bounds_of_a_run_hold():
    runs = AllocatedRuns(a=run(1, high=2), b=run(3, low=3))
    WorkerAllocator(runs, lambda: SLOTS).turn(["a", "b"])
    assert dict(runs.asked) == {"a": 2, "b": 6}


class Steering:
    """A scheduler with given targets."""

    def __init__(self, target_workers: Mapping[str, int], trials_to_stop: Mapping[str, str]) -> None:
        self._shares, self._ending = target_workers, trials_to_stop
        self.noted: list[tuple[Mapping[str, TrialAllocation], int]] = []

    def note_allocations(self, allocations: Mapping[str, TrialAllocation], slots: int) -> None:
        self.noted.append((allocations, slots))

    def target_workers(self) -> Mapping[str, int]:
        return self._shares

    def trials_to_stop(self) -> Mapping[str, str]:
        return self._ending


def test_it_follows_a_scheduler_with_shares_and_ends_whom_that_gives_up():
    runs = AllocatedRuns(a=run(2), b=run(2))
    scheduler = Steering({"a": 8}, {"b": "too slow"})
    WorkerAllocator(runs, lambda: SLOTS, scheduler).turn(["a", "b"])
    assert scheduler.noted == [({"a": run(2), "b": run(2)}, SLOTS)]
    assert runs.ended == ["b"]
    assert runs.asked == []
    del runs.there["b"]
    WorkerAllocator(runs, lambda: SLOTS, scheduler).turn(["a"])
    assert runs.asked == [("a", 8)]
