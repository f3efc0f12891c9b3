from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sweep.deadline.allocation import WorkerDemand, allocate

POLICIES = ("top", "uniform", "softmax")
forecasts = st.one_of(st.floats(-1e6, 1e6), st.just(float("-inf")))


@st.composite
def demands(draw: st.DrawFn) -> list[WorkerDemand]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        low = draw(st.integers(1, 4))
        high = low + draw(st.integers(0, 6))
        found.append(WorkerDemand(trial_id=str(number), min_workers=low, max_workers=high, forecast=draw(forecasts)))
    return found


@given(demands(), st.integers(0, 40), st.sampled_from(POLICIES))
def test_never_more_than_there_are_and_each_within_its_bounds(found, slots, policy):
    target_workers = allocate(found, slots, policy)
    assert list(target_workers) == [demand.trial_id for demand in found]
    assert sum(target_workers.values()) <= slots
    for demand in found:
        assert (
            target_workers[demand.trial_id] == 0
            or demand.min_workers <= target_workers[demand.trial_id] <= demand.max_workers
        )


@given(demands(), st.integers(0, 40), st.sampled_from(POLICIES))
def test_everybody_gets_the_minimum_as_long_as_slots_allow(found, slots, policy):
    target_workers, needed = allocate(found, slots, policy), 0
    for demand in found:
        needed += demand.min_workers
        assert (target_workers[demand.trial_id] > 0) == (needed <= slots)


@given(demands(), st.integers(0, 40), st.sampled_from(POLICIES))
def test_nothing_is_left_over_while_somebody_could_take_it(found, slots, policy):
    target_workers = allocate(found, slots, policy)
    if all(target_workers.values()):
        assert sum(target_workers.values()) == min(slots, sum(demand.max_workers for demand in found))


@given(demands(), st.integers(0, 40), st.sampled_from(POLICIES))
def test_one_more_slot_takes_none_from_anybody(found, slots, policy):
    before, after = allocate(found, slots, policy), allocate(found, slots + 1, policy)
    if all(before.values()):
        assert all(after[trial_id] >= before[trial_id] for trial_id in before)


@given(demands(), st.integers(0, 40), st.sampled_from(["top", "softmax"]))
def test_a_better_promise_never_gets_less_with_the_same_bounds(found, slots, policy):
    alike = [WorkerDemand(trial_id=demand.trial_id, max_workers=9, forecast=demand.forecast) for demand in found]
    target_workers = allocate(alike, slots, policy)
    if all(target_workers.values()):
        for better in alike:
            # One slot may be the last to be allocated.
            assert all(
                target_workers[better.trial_id] >= target_workers[worse.trial_id] - (policy == "softmax")
                for worse in alike
                if worse.forecast < better.forecast
            )


THREE = [
    WorkerDemand(trial_id=name, max_workers=8, forecast=forecast)
    for name, forecast in [("a", 0.1), ("b", 0.9), ("c", 0.5)]
]


@pytest.mark.parametrize(
    ("policy", "target_workers"),
    [("top", {"a": 1, "b": 8, "c": 1}), ("uniform", {"a": 4, "b": 3, "c": 3}), ("softmax", {"a": 1, "b": 7, "c": 2})],
)
def test_policies(policy, target_workers):
    assert allocate(THREE, 10, policy) == target_workers


def test_top_fills_the_next_one_after_the_best():
    assert allocate(THREE, 14, "top") == {"a": 1, "b": 8, "c": 5}
