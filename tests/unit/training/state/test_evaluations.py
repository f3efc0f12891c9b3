"""Rule by which evaluations are judged, as a function of their values."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from forebay.errors import InvalidOption
from forebay.events import Evaluated, Sample
from forebay.training.state.evaluations import KeepBest, best_of, loaded, saved, with_evaluation

VALUES = some.lists(some.one_of(some.integers(0, 5).map(float), some.just(math.nan)), max_size=12)


def judged(rule: KeepBest, values: list[float]) -> tuple[Evaluated, ...]:
    found: tuple[Evaluated, ...] = ()
    for step, value in enumerate(values):
        one = Evaluated(step=step, epoch=0, position=step, rows=step, metrics={rule.metric: value})
        found = with_evaluation(found, rule.judged(one, found))
    return found


@given(VALUES, some.sampled_from(["min", "max"]), some.integers(1, 4))
def test_best_is_the_first_of_the_best_values_and_patience_counts_from_it(
    values: list[float], mode: str, patience: int
) -> None:
    rule = KeepBest(mode=mode, patience=patience)  # type: ignore[arg-type] - one of both
    best, finite = best_of(judged(rule, values)), [each for each in values if not math.isnan(each)]
    first = values.index((min if mode == "min" else max)(finite)) if finite else None
    assert (None if best is None else best.step) == first
    waited = len(values) - 1 - first if first is not None else len(values)
    assert (rule.end(judged(rule, values)) is not None) == (waited >= patience)


def test_run_that_goes_on_with_another_metric_is_judged_by_it_from_there_on() -> None:
    earlier, rule = judged(KeepBest("loss"), [0.5, 0.4, 0.6]), KeepBest("auc", mode="max", patience=2)
    assert rule.end(earlier) is None, "evaluations by another rule count as not better"
    found = earlier
    for step, value in ((3, 0.7), (4, 0.8), (5, 0.8), (6, 0.6)):
        one = Evaluated(step=step, epoch=0, position=step, rows=step, metrics={"auc": value})
        found = with_evaluation(found, rule.judged(one, found))
        best = best_of(found)
        assert best is not None
        assert best.step == min(step, 4)
    assert rule.end(found[:-1]) is None
    assert rule.end(found) == "auc was not better in 2 evaluations since step 4 (0.8)"


def test_small_change_is_not_better() -> None:
    best = best_of(judged(KeepBest(least_change=0.1), [1.0, 0.95, 0.91, 0.5]))
    assert best is not None
    assert best.step == 3


def test_run_may_go_on_with_a_rule_of_another_metric() -> None:
    before = judged(KeepBest("auc", mode="max"), [0.5, 0.4, 0.3])
    rule = KeepBest("loss", patience=2)
    assert rule.end(before) is None
    for step, loss in ((3, 1.0), (4, 2.0), (5, 2.0)):
        one = Evaluated(step=step, epoch=0, position=step, rows=step, metrics={"auc": 0.1, "loss": loss})
        before = with_evaluation(before, rule.judged(one, before))
    assert [each.step for each in before if each.is_best] == [0, 3]
    assert rule.end(before) == "loss was not better in 2 evaluations since step 3 (1)"


def test_saved_evaluations_are_loaded_and_only_the_last_keeps_its_samples() -> None:
    found = [
        Evaluated(step=step, epoch=0, position=1, rows=2, metrics={"a": 0.5}, samples=(Sample(prompt="p", text="t"),))
        for step in (0, 5)
    ]
    first, last = loaded(json.loads(json.dumps(saved(found))))
    assert (first.samples, last) == ((), found[1])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"metric": ""}, "metric"),
        ({"mode": "least"}, "mode='least'"),
        ({"patience": 0}, "patience=0"),
        ({"least_change": -1}, "least_change=-1"),
        ({"least_change": math.nan}, "least_change=nan"),
    ],
)
def test_rules_that_can_never_work_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        KeepBest(**options)  # type: ignore[arg-type]
