"""A driver has all reports before one that it has, so a worker finds the first missing one by few questions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forebay.events import EpochEnded, Evaluated, Sample
from forebay.training.state.known_reports import KnownReports, unknown


def ended(epoch: int, loss: float = 1.0, **more: float) -> EpochEnded:
    spent = {"seconds": 1.0, "wait_s": 0.25, "eval_s": 0.0, "checkpoint_s": 0.5} | more
    return EpochEnded(epoch=epoch, step=8 * epoch + 8, metrics={"loss": loss}, rows=1, **spent)


def evaluated(step: int, loss: float = 1.0, **more: Any) -> Evaluated:
    return Evaluated(step=step, epoch=0, position=0, rows=step, metrics={"loss": loss}, **more)


@pytest.mark.parametrize("made", [ended, evaluated])
def test_an_equal_report_is_known_and_another_one_is_not(made: Any) -> None:
    known = KnownReports([made(0), made(1, math.nan)])
    assert known.knows(made(0)) and known.knows(made(1, math.nan))
    assert not known.knows(made(1, 2.0)) and not known.knows(made(2))


def test_what_a_checkpoint_leaves_out_makes_no_other_report() -> None:
    known = KnownReports([ended(0), evaluated(4, samples=(Sample(prompt="p", text="t"),))])
    assert known.knows(ended(0, seconds=3.0, checkpoint_s=2.5)) and known.knows(evaluated(4))
    assert not known.knows(ended(0, wait_s=0.125)), "trained again"


@pytest.mark.parametrize("made", [ended, evaluated])
def test_a_report_of_what_is_trained_again_replaces_all_after_it(made: Any) -> None:
    known = KnownReports([made(number) for number in range(5)])
    known.note(made(2))
    assert known.knows(made(4)), "the same report again says nothing"
    known.note(made(2, 3.0))
    assert [known.knows(made(number)) for number in range(5)] == [True, True, False, False, False]
    assert known.knows(made(2, 3.0))


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_the_reports_after_the_last_known_one_are_found_by_few_questions(size: int) -> None:
    reports = [ended(epoch) for epoch in range(size)]
    for num_known in {0, 1, size // 3, size - 1, size} & set(range(size + 1)):
        known, questions = KnownReports(reports[:num_known]), list[int]()

        def knows(report: EpochEnded, known: KnownReports = known, questions: list[int] = questions) -> bool:
            questions.append(report.epoch)
            return known.knows(report)

        assert list(unknown(reports, knows)) == reports[num_known:]
        assert len(questions) <= (1 if num_known == size else 1 + math.ceil(math.log2(size)) + 1)
