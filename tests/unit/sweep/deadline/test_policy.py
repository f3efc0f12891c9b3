"""The deadline policy, one rule at a time, and the whole of it on simulated sweeps compared with Ray's ASHA."""

from __future__ import annotations

import math
from typing import Any

import pytest
import ray.tune.schedulers  # noqa: F401 - Ray's first import sets variables, which no test may
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidOption
from forebay.sweep.deadline.learning_curve import LearningCurve, current_level
from forebay.sweep.deadline.policy import (
    Costs,
    Rules,
    SweepView,
    TrialView,
    can_end_epoch,
    decide,
    explore_until_s,
    fails_rung,
    forecast,
    is_growth_worthwhile,
    max_live_trials,
)
from forebay.sweep.deadline.speedup import PRIOR_EXPONENT, SpeedupModel

COSTS = Costs(startup_s=5.0, resize_s=2.0, stop_s=1.0)
RULES = Rules()


@pytest.mark.parametrize(
    "facts",
    [
        {"reduction": 1},
        {"explore_min": 1.0},
        {"explore_min": 0.8},
        {"explore_max": 1.0},
        {"alone": 1.0},
        {"alone": -0.1},
        {"worth": 0.0},
        {"worth": math.nan},
        {"results_between_growths": -1},
    ],
)
def test_rules_that_leave_no_time_or_trials_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(facts))):
        Rules(**facts)


def trial(trial_id: str, *scores: float, state: str = "running", **facts) -> TrialView:
    return TrialView(
        trial_id=trial_id, state=state, scores=scores, **{"epoch_s": 10.0, "max_workers": 8, "workers": 1} | facts
    )


def view(*trials: TrialView, now_s: float = 0.0, deadline_s: float = 1000.0, **facts) -> SweepView:
    rungs: dict[int, list[float]] = {}
    for each in trials:
        for age, score in enumerate(each.scores, 1):
            rungs.setdefault(age, []).append(score)
    told = {
        "slots": 4,
        "rungs": rungs,
        "costs": COSTS,
        "learning_curve": LearningCurve(),
        "speedup_model": SpeedupModel(),
    }
    return SweepView(now_s=now_s, deadline_s=deadline_s, trials=trials, **told | facts)


def waiting(trial_id: str, **facts) -> TrialView:
    return trial(trial_id, state="waiting", **{"workers": 0} | facts)


def paused(trial_id: str, *scores: float) -> TrialView:
    return trial(trial_id, *scores, state="paused", workers=0)


def test_at_first_as_many_begin_as_have_a_place_with_one_worker_each() -> None:
    found = decide(view(*(waiting(str(number)) for number in range(6))), RULES)
    assert found.start == ("0", "1", "2", "3")
    assert found.workers == dict.fromkeys(found.start, 1)
    assert not found.stop and not found.pause


def test_fewer_begin_than_have_a_place_where_only_so_many_may() -> None:
    found = decide(view(*(waiting(str(number)) for number in range(6)), max_live=2), RULES)
    assert found.start == ("0", "1") and sum(found.workers.values()) == 4
    running = [trial("a", 0.5), trial("b", 0.1)]
    full = decide(view(*running, waiting("c"), rungs={1: [0.5, 0.4, 0.1]}, max_live=2), RULES)
    assert (full.stop, full.start) == ({"b"}, ("c",))


def test_few_trials_share_all_workers() -> None:
    found = decide(view(waiting("a"), waiting("b")), RULES)
    assert found.workers == {"a": 2, "b": 2}


def test_who_fails_its_rung_ends_when_another_one_waits() -> None:
    running = [trial("a", 0.5), trial("b", 0.1), trial("c", 0.2), trial("d", 0.4)]
    assert decide(view(*running), RULES).stop == frozenset()
    found = decide(view(*running, waiting("e")), RULES)
    assert (found.stop, found.start) == ({"b"}, ("e",))
    assert "b" not in found.workers and found.workers["e"] == 1


def test_a_trial_without_an_epoch_is_not_judged() -> None:
    running = [trial("a", 0.5), trial("b"), trial("c", 0.6), trial("d", 0.7)]
    assert decide(view(*running, waiting("e"), waiting("f"), waiting("g")), RULES).stop == {"a", "c"}


def test_a_rung_is_judged_by_all_who_came_so_far_as_of_today() -> None:
    first = trial("first", 0.3, 0.5)
    assert not fails_rung(first, {1: [0.3]}, reduction=3)
    assert not fails_rung(first, {1: [0.3, 0.2, 0.1]}, reduction=3)
    assert fails_rung(first, {1: [0.3, 0.4, 0.2]}, reduction=3)
    # At three epochs, the score of the third counts.
    assert not fails_rung(trial("late", 0.1, 0.2, 0.9), {1: [0.1, 0.5, 0.6], 3: [0.9, 0.8]}, reduction=3)


def test_late_trials_do_not_begin() -> None:
    late = view(trial("a", 0.5), waiting("b"), now_s=700.0)
    assert decide(late, RULES).start == ()


def test_new_trials_begin_as_long_as_a_whole_one_has_time() -> None:
    assert explore_until_s(view(waiting("a", epochs=None)), RULES) == 300.0
    speedup = 4**PRIOR_EXPONENT
    assert explore_until_s(view(waiting("a", epochs=100, epoch_s=15.0)), RULES) == pytest.approx(1000 - 1500 / speedup)
    assert explore_until_s(view(waiting("a", epochs=1)), RULES) == 700.0
    assert explore_until_s(view(waiting("a", epochs=10_000)), RULES) == 300.0


@given(st.integers(1, 64), st.lists(st.floats(0, 1000), min_size=2, max_size=5))
def test_ever_fewer_trials_live(slots: int, times: list[float]) -> None:
    live = [max_live_trials(view(trial("a"), slots=slots, now_s=now_s), RULES, 200.0) for now_s in sorted(times)]
    assert live == sorted(live, reverse=True)
    assert max_live_trials(view(trial("a"), slots=slots, now_s=200.0), RULES, 200.0) == slots
    assert max_live_trials(view(trial("a"), slots=slots, now_s=999.0), RULES, 200.0) == 1


def test_near_the_end_the_best_one_is_alone_with_all_workers() -> None:
    running = [trial("a", 0.5), trial("b", 0.9), trial("c", 0.4), trial("d", 0.7)]
    found = decide(view(*running, now_s=900.0), RULES)
    assert found.pause == {"a", "c", "d"}
    assert found.workers == {"b": 4}


def test_between_them_the_rest_goes_by_policy() -> None:
    running = [trial("a", 0.5, 0.5), trial("b", 0.9, 0.9), trial("c", 0.4, 0.4)]
    now = view(*running, slots=9, now_s=350.0)
    assert decide(now, Rules(policy="top")).workers == {"a": 1, "b": 7, "c": 1}
    assert decide(now, Rules(policy="uniform")).workers == {"a": 3, "b": 3, "c": 3}
    soft = decide(now, Rules(policy="softmax")).workers
    assert soft["b"] > soft["a"] >= soft["c"] and sum(soft.values()) == 9


def test_a_paused_trial_goes_on_when_the_better_ones_have_ended() -> None:
    assert decide(view(paused("a", 0.5), paused("b", 0.8), now_s=900.0), RULES).start == ("b",)
    assert decide(view(trial("c", 0.6), paused("b", 0.8), now_s=900.0, slots=2), RULES).start == ()
    finished = trial("c", 0.9, epochs=1)
    found = decide(view(finished, paused("b", 0.8), now_s=900.0), RULES)
    assert (found.stop, found.start) == ({"c"}, ("b",))


def test_all_end_in_time_for_their_last_commit() -> None:
    running = [trial("a", 0.5), waiting("b"), paused("c", 0.2)]
    late = decide(view(*running, trial("done", 0.9, epochs=1), now_s=998.9), RULES)
    assert (late.stop, late.late) == ({"b", "c", "a", "done"}, {"b", "c", "a"})
    assert decide(view(*running, now_s=999.5), RULES).workers == {}


def test_who_cannot_end_another_epoch_ends_now() -> None:
    slow = trial("slow", 0.5, epoch_s=100.0, max_workers=1)
    assert can_end_epoch(slow, view(slow, now_s=890.0))
    assert not can_end_epoch(slow, view(slow, now_s=900.0))
    begun = trial("slow", 0.5, epoch_s=100.0, max_workers=1, since_result_s=50.0)
    assert can_end_epoch(begun, view(begun, now_s=940.0))
    # A trial that has to start first needs that time as well.
    assert not can_end_epoch(waiting("new", epoch_s=10.0, max_workers=1), view(now_s=985.0))
    assert can_end_epoch(waiting("new", epoch_s=10.0, max_workers=1), view(now_s=980.0))


def test_a_guess_is_no_reason_to_end() -> None:
    slow = view(trial("a"), waiting("b"), now_s=990.0, is_estimate=True)
    assert decide(slow, RULES).stop == frozenset()
    over = view(trial("a"), waiting("b"), now_s=999.5, is_estimate=True)
    assert decide(over, RULES).stop == {"a", "b"}


def test_more_workers_only_when_the_change_pays() -> None:
    one = trial("a", 0.5)
    assert is_growth_worthwhile(one, 2, view(one, now_s=0.0), RULES)
    # Two workers are 1.74 times as fast. With 4 s left, of which a resize takes 2, they get less far.
    assert not is_growth_worthwhile(one, 2, view(one, now_s=995.0), RULES)
    few_more = trial("a", 0.5, workers=20, max_workers=40)
    assert not is_growth_worthwhile(few_more, 21, view(few_more), RULES)


def test_a_trial_grows_again_only_after_some_results() -> None:
    just_grown = trial("a", 0.5, results_since_resize=1)
    assert not is_growth_worthwhile(just_grown, 4, view(just_grown), RULES)
    found = decide(view(just_grown, now_s=900.0), RULES)
    assert found.workers == {"a": 1}


def test_shrinking_needs_no_reason() -> None:
    found = decide(view(trial("a", 0.5, workers=4, results_since_resize=0), waiting("b"), now_s=0.0), RULES)
    assert found.workers == {"a": 2, "b": 2}


def test_what_is_not_worth_it_for_one_goes_to_the_next() -> None:
    running = [trial("a", 0.9, 0.9, results_since_resize=0), trial("b", 0.5, 0.5)]
    found = decide(view(*running, slots=6, now_s=350.0), RULES)
    assert found.workers == {"a": 1, "b": 5}


bounds = st.integers(1, 3).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 9)))
trial_views = st.builds(
    lambda state, scores, low_high, workers: {
        "state": state,
        "scores": () if state == "waiting" else tuple(scores),
        "min_workers": low_high[0],
        "max_workers": low_high[1],
        "workers": min(max(workers, low_high[0]), low_high[1]) if state == "running" else 0,
    },
    st.sampled_from(["waiting", "running", "paused"]),
    st.lists(st.one_of(st.floats(-10, 10), st.just(-math.inf)), max_size=6),
    bounds,
    st.integers(1, 9),
)


@given(st.lists(trial_views, max_size=8), st.integers(1, 20), st.floats(0, 1000), st.sampled_from(["top", "softmax"]))
def test_decisions_always_fit(found, slots, now_s, policy) -> None:
    trials = [TrialView(trial_id=str(n), epoch_s=10.0, **facts) for n, facts in enumerate(found)]
    decisions = decide(view(*trials, slots=slots, now_s=now_s), Rules(policy=policy))
    by_id = {each.trial_id: each for each in trials}
    assert sum(decisions.workers.values()) <= slots
    for trial_id, workers in decisions.workers.items():
        assert workers == 0 or by_id[trial_id].min_workers <= workers <= by_id[trial_id].max_workers
    assert not decisions.stop & decisions.pause
    assert not (decisions.stop | decisions.pause) & decisions.workers.keys()
    assert set(decisions.start) <= decisions.workers.keys()
    assert all(by_id[trial_id].state != "running" for trial_id in decisions.start)
    assert all(by_id[trial_id].state == "running" for trial_id in decisions.pause)


def test_promise_adds_what_others_gained_at_the_same_age() -> None:
    learning_curve = LearningCurve()
    for age, gain in ((1, 0.2), (2, 0.1), (3, 0.05)):
        learning_curve.note(age, gain)
    assert learning_curve.gain_between(1, 4) == pytest.approx(0.35)
    assert learning_curve.gain_between(2, 3) == pytest.approx(0.1)
    assert 0.35 < learning_curve.gain_between(1, 40) < 1.0
    young, old = trial("young", 0.6, epochs=4), trial("old", 0.6, 0.65, 0.7, 0.72, epochs=4)
    now = view(young, old, learning_curve=learning_curve)
    assert forecast(young, now) == pytest.approx(0.95)
    assert forecast(old, now) == pytest.approx(current_level(old.scores))
    # Without time for those epochs, the older trial is ahead.
    late = view(young, old, learning_curve=learning_curve, now_s=996.0, slots=1)
    assert forecast(young, late) < forecast(old, late)


def test_scaling_is_learnt_from_trials_that_changed() -> None:
    speedup_model = SpeedupModel()
    assert speedup_model.speedup(4) == pytest.approx(4**PRIOR_EXPONENT)
    for trial_id, rate in (("a", 100.0), ("b", 300.0), ("c", 50.0)):
        for workers, speedup in ((1, 1.0), (2, 1.5), (4, 2.0)):
            for _ in range(3):
                speedup_model.note(trial_id, workers, rate * speedup)
    assert speedup_model.speedup(4) / speedup_model.speedup(1) == pytest.approx(2.0, rel=0.15)
    assert speedup_model.speedup(8) < 4.0


def test_it_ends_better_than_asha_on_simulated_sweeps() -> None:
    """A small part of `bench/deadline/__main__.py`, whose document covers a thousand sweeps."""
    from bench.deadline import report, setting, world

    won = {workers: [] for workers in (1, 2)}
    for seed in range(20_000, 20_030):
        sweep = setting.draw(seed)
        ours = world.play_deadline(sweep)
        for workers, found in won.items():
            asha = world.play_asha(sweep, workers, 3)
            assert asha is not None
            found.append(ours - asha)
    for found in won.values():
        assert report.win_rate(found) > 0.55
        assert sum(found) > 0
