"""The end of a Horovod world is detected from answers and from silence. The test sets the clock."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.unit.training.driver.elastic.test_policy import CountedName

from forebay.errors import Hung
from forebay.training.driver.elastic.controller import WorldBroken, WorldPaused
from forebay.training.driver.elastic.phase import Completed, Raised
from forebay.training.driver.elastic.pool import Lost
from forebay.training.driver.horovod import failure_detector
from forebay.training.driver.horovod.failure_detector import MEET_S, QUIET_S, Answered, FailureDetector
from forebay.training.driver.horovod.liveness import Entered
from forebay.training.driver.horovod.worker import Answer, Broken
from forebay.training.driver.worker_error import WorkerError
from forebay.training.driver.worker_main import Outcome

HANG_S = 60.0
ERROR = WorkerError(rank=1, summary="ValueError: no", traceback="", pickled=None)
LOST_TOUCH = Broken(raised=WorkerError(rank=1, summary="HorovodInternalError: reset", traceback="", pickled=None))


class DetectorClock:
    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[DetectorClock]:
    clock = DetectorClock()
    monkeypatch.setattr(failure_detector, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def detector(*answers: tuple[str, Answer], size: int = 3, lost: str = "") -> FailureDetector:
    """Detector of a world of the workers a, b and c, by rank."""
    made = FailureDetector("mine", "abc"[:size], HANG_S)
    for name in lost:
        made.note(Lost(name=name))
    for name, answer in answers:
        made.note(Answered(name=name, world=1, answer=answer))
    return made


def everywhere(answer: Answer, names: str = "abc") -> list[tuple[str, Answer]]:
    return [(name, answer) for name in names]


def test_world_ends_when_the_last_worker_has_answered_or_is_lost() -> None:
    assert detector(*everywhere(Outcome(resize_to=2), "ab")).end() is None
    assert detector(*everywhere(Outcome(resize_to=2))).end() == WorldPaused()
    assert detector(*everywhere(Outcome())).end() == Completed(stopped=None)
    assert detector(*everywhere(Outcome(stopped="enough"))).end() == Completed(stopped="enough")


def test_rank_0_has_the_last_word() -> None:
    assert detector(("a", Outcome()), ("b", LOST_TOUCH), lost="c").end() == Completed(stopped=None)
    assert detector(("b", Outcome()), ("c", Outcome()), lost="a").end() == WorldBroken(error="lost worker 0")


def test_lost_workers_are_named_by_rank_and_those_that_only_noticed_are_not() -> None:
    assert detector(("a", LOST_TOUCH), lost="cb").end() == WorldBroken(error="lost workers 1, 2")
    assert detector(*everywhere(LOST_TOUCH)).end() == WorldBroken(
        error="the workers lost their connection (HorovodInternalError: reset)"
    )


def test_error_of_the_train_function_ends_the_world_at_once() -> None:
    assert detector(("b", ERROR)).end() == Raised(error=ERROR)


def test_worker_that_died_after_its_answer_is_not_lost() -> None:
    paused = detector(*everywhere(Outcome(resize_to=2)))
    paused.note(Lost(name="b"))
    assert paused.end() == WorldPaused()


def test_workers_that_wait_to_meet_a_dead_one_are_stuck(clock: DetectorClock) -> None:
    world = detector(lost="c")
    world.note(Entered(name="a", world=1))
    assert world.stuck() == [] and not world.has_met
    clock.now += MEET_S + 0.1
    assert world.stuck() == ["b"], "a has met the others: it notices in its next collective"
    assert world.end() is None


def test_rank_that_hangs_when_the_others_are_done_is_named(clock: DetectorClock) -> None:
    world = detector(("c", Outcome()), ("a", Outcome()))
    clock.now += HANG_S
    assert world.end() is None
    clock.now += 1.0
    with pytest.raises(Hung, match=r"rank 1 of run 'mine' hung") as hung:
        world.end()
    assert hung.value.ranks == [1]


@pytest.mark.parametrize(("lost", "patience_s"), [("", QUIET_S), ("c", HANG_S)], ids=["lost touch", "lost a worker"])
def test_rank_that_does_not_notice_that_the_world_came_apart_hangs(
    clock: DetectorClock, lost: str, patience_s: float
) -> None:
    world = detector(("b", LOST_TOUCH), *([] if lost else [("c", LOST_TOUCH)]), lost=lost)
    clock.now += patience_s
    assert world.end() is None
    clock.now += 1.0
    with pytest.raises(Hung, match="rank 0 of run"):
        world.end()


def test_a_lost_half_costs_as_many_comparisons_as_there_are_workers() -> None:
    def compared(count: int) -> int:
        names = [CountedName(number) for number in range(count)]
        CountedName.compared = 0
        made = FailureDetector("mine", names, HANG_S)
        for name in names:
            made.note(Entered(name=name, world=1))
        for name in names[: count // 2]:
            made.note(Lost(name=name))
            assert made.end() is None
        for name in names[count // 2 :]:
            made.note(Answered(name=name, world=1, answer=LOST_TOUCH))
            assert (made.end() is None) == (name is not names[-1])
        assert made.end() == WorldBroken(error=f"lost workers 0-{count // 2 - 1}")
        return CountedName.compared

    assert compared(512) <= 10 * compared(64), "8 times the workers cost more than n log n"
