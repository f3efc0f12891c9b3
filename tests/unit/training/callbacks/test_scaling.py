"""Targets by epoch are a function of the position."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.errors import InvalidOption
from forebay.events import EpochEnded, Preparing, Reported, Started
from forebay.training.callbacks.scaling import ScaleSchedule
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Callback, Control

STARTED = Started(name="run", world_size=1, epochs=10, num_batches=5)
DOUBLING = {0: 1, 2: 2, 4: 4}


def control(least: int = 1, most: int = 8, start: int | None = None, epochs: int = 10) -> Control:
    return Control(elastic=Elastic(min_workers=least, max_workers=most, start=start), epochs=epochs)


def reported(epoch: int) -> Reported:
    return Reported(step=1, epoch=epoch, position=3, metrics={"loss": 1.0}, rows=3)


def ended(epoch: int) -> EpochEnded:
    return EpochEnded(epoch=epoch, step=5, metrics={}, rows=9, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0)


def sizes(callback: Callback, asked: Control, epochs: int) -> Iterator[int]:
    """Target for each epoch, as a run would ask for it."""
    for epoch in range(epochs):
        callback(STARTED, asked)
        callback(reported(epoch), asked)
        yield asked.target
        callback(ended(epoch), asked)


def test_schedule_changes_where_it_says() -> None:
    assert list(sizes(ScaleSchedule({0: 2, 3: 4, 5: 1}), control(start=2), 7)) == [2, 2, 2, 4, 4, 1, 1]


def test_schedule_leaves_what_it_does_not_name_and_knows_the_bounds() -> None:
    assert list(sizes(ScaleSchedule({2: 99, 4: 1}), control(least=2, most=6, start=3), 5)) == [3, 3, 6, 6, 2]


def test_what_a_person_asked_for_holds_until_the_next_change() -> None:
    callback, asked = ScaleSchedule({0: 2, 4: 4}), control(start=2)
    assert list(sizes(callback, asked, 1)) == [2]
    asked.follow(target=7)
    for epoch in (1, 2):
        callback(reported(epoch), asked)
        callback(ended(epoch), asked)
        assert asked.target == 7
    callback(ended(3), asked)
    assert asked.target == 4


def test_a_driver_that_goes_on_with_a_run_asks_for_what_belongs_to_its_epoch() -> None:
    throughout = list(sizes(ScaleSchedule(DOUBLING), control(start=1), 6))
    callback, again = ScaleSchedule(DOUBLING), control(start=1)
    callback(STARTED, again)
    callback(reported(5), again)
    assert again.target == throughout[5] == 4


def test_a_schedule_is_asked_for_before_there_are_workers_and_then_holds() -> None:
    elastic = Elastic(min_workers=1, max_workers=8, start=8)
    asked = Control(elastic=elastic, epochs=10, epoch=2)
    callback = ScaleSchedule(DOUBLING)
    callback(Preparing(what="starting"), asked)
    assert asked.take_resize() == asked.target == 2
    asked.follow(target=1)
    callback(reported(2), asked)
    assert (asked.take_resize(), asked.target) == (None, 1), "what others decided since was overruled"
    callback(ended(3), asked)
    assert asked.take_resize() == 4


def test_a_job_of_fixed_size_is_told_so_at_its_first_step() -> None:
    callback, asked = ScaleSchedule(DOUBLING), Control(workers=2)
    callback(Preparing(what="starting"), asked)
    with pytest.raises(InvalidOption, match="fixed number of workers"):
        callback(reported(0), asked)


def test_an_epoch_that_is_told_twice_asks_for_the_same() -> None:
    callback, asked = ScaleSchedule(DOUBLING), control()
    for _ in range(2):
        callback(ended(1), asked)
    assert asked.target == 2


def test_nothing_is_asked_for_after_the_last_epoch() -> None:
    callback, asked = ScaleSchedule({2: 4}), control(start=1, epochs=2)
    assert list(sizes(callback, asked, 2)) == [1, 1]
    assert asked.target == 1


def test_options_that_cannot_work() -> None:
    with pytest.raises(InvalidOption, match="is empty"):
        ScaleSchedule({})
    with pytest.raises(InvalidOption, match="workers=0"):
        ScaleSchedule({1: 0})


def test_a_job_of_fixed_size_refuses() -> None:
    with pytest.raises(InvalidOption, match="elastic=Elastic"):
        list(sizes(ScaleSchedule({0: 2}), Control(workers=2, epochs=3), 1))
