"""Steps that were trained twice count once, and a long run's record stays short."""

from __future__ import annotations

import math
from typing import Any

from forebay.events import EpochEnded, Evaluated, Failed, Finished, Reported, Sample
from forebay.training.runs.result import MAX_STEPS, MOST_SAMPLED, Result, RunHistory

START = Result(name="a", path="/runs/a", plan_id="p", num_epochs=2)


def reported(step: int, **metrics: float) -> Reported:
    return Reported(step=step, epoch=0, position=step * 16, metrics=metrics, rows=step * 16)


def ended(epoch: int, loss: float) -> EpochEnded:
    return EpochEnded(
        epoch=epoch, step=8, metrics={"loss": loss}, rows=1, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0
    )


def test_steps_that_are_done_again_replace_the_lost_ones() -> None:
    history = RunHistory(START)
    for step in (1, 5, 9):
        history.record(reported(step, loss=float(step)))
    history.record(Failed(error="worker 1 was killed", failures=1, will_retry=True))
    history.record(reported(4, loss=40.0))
    assert [(step.step, step.metrics["loss"]) for step in history.result.steps] == [(1, 1.0), (4, 40.0)]
    assert history.result.failures == 1


def test_metrics_of_one_step_come_together() -> None:
    history = RunHistory(START)
    history.record(reported(1, loss=0.5))
    history.record(reported(2, loss=0.4))
    history.record(reported(2, auc=0.7))
    assert history.result.steps[-1].metrics == {"loss": 0.4, "auc": 0.7}
    assert len(history.result.steps) == 2


def test_epoch_told_again_after_a_resume_is_kept_once() -> None:
    history = RunHistory(START)
    for event in (ended(0, 3.0), ended(1, 2.0), ended(1, 2.5)):
        history.record(event)
    assert [epoch.metrics["loss"] for epoch in history.result.epochs] == [3.0, 2.5]


def test_epoch_told_again_in_the_same_words_is_known() -> None:
    history = RunHistory(START)
    history.record(ended(0, float("nan")))
    assert history.knows(ended(0, float("nan")))
    assert not history.knows(ended(0, 3.0))
    assert not history.knows(ended(1, float("nan")))


def test_long_record_is_thinned_but_keeps_both_ends() -> None:
    history = RunHistory(START)
    for step in range(1, 5 * MAX_STEPS):
        history.record(reported(step, loss=1.0))
    steps = [step.step for step in history.result.steps]
    assert len(steps) <= MAX_STEPS
    assert steps[0] == 1 and steps[-1] == 5 * MAX_STEPS - 1
    assert steps == sorted(set(steps))


def test_earlier_part_of_a_run_is_continued_and_its_stop_forgotten() -> None:
    first = RunHistory(START)
    first.record(ended(0, 3.0))
    first.record(Finished(name="a", path="/runs/a", stopped="enough"))
    assert first.result.stopped == "enough"
    second = RunHistory(first.result)
    second.record(ended(1, 2.0))
    assert second.result.is_finished
    assert second.result.stopped is None


def evaluated(step: int, loss: float, **more: Any) -> Evaluated:
    return Evaluated(step=step, epoch=0, position=0, rows=step, metrics={"validation_loss": loss}, **more)


SAMPLES = (Sample(prompt="p", text="t"),)


def test_evaluations_told_again_are_kept_once_with_their_samples() -> None:
    history = RunHistory(START)
    told = [evaluated(0, 3.0, samples=SAMPLES), evaluated(5, math.nan, samples=SAMPLES), evaluated(10, 2.0)]
    for event in told:
        history.record(event)
    assert history.knows(evaluated(5, math.nan))
    for event in (evaluated(0, 3.0), evaluated(5, math.nan)):
        history.record(event)
    assert repr(list(history.result.evaluations)) == repr(told)
    history.record(evaluated(5, 2.5))
    assert [each.step for each in history.result.evaluations] == [0, 5], "what is trained again replaces what was lost"
    restored = Result.from_json(history.result.to_json())
    assert restored == history.result


def test_old_samples_are_dropped_but_those_of_the_best() -> None:
    history = RunHistory(START)
    for step in range(100):
        history.record(evaluated(step, 1.0, samples=SAMPLES, is_best=step == 7))
    kept = [each.step for each in history.result.evaluations if each.samples]
    assert kept == [7, *range(100 - MOST_SAMPLED, 100)]
    assert len(history.result.evaluations) == 100
    assert history.result.best is not None
    assert history.result.best.step == 7
