"""Pools that are held for jobs that waited long."""

from __future__ import annotations

import dataclasses

from tests.unit.fleet.placement.test_place import NOTHING, NOW, capacity, cluster, job, view

from forebay.fleet.placement.hold import HOLD_AFTER_S, WaitingTask, choose_holds
from forebay.fleet.placement.place import place


def waiting(name: str, waited_s: float = HOLD_AFTER_S, **workers: object) -> WaitingTask:
    spec = dataclasses.replace(job({"min": 12, **workers}), name=name)
    return WaitingTask(name=name, spec=spec, task=spec.task[0], since=NOW - waited_s)


SEEN = view((cluster("a"), capacity("a", count=3)), (cluster("b"), capacity("b", count=1)))


def test_the_first_that_waited_long_enough_holds_the_pool_with_most_room() -> None:
    many = [waiting("young", HOLD_AFTER_S - 1), waiting("old"), waiting("second")]
    # Four pools: one of them is held. The pool of b could never hold 12 workers.
    assert choose_holds(many, SEEN, {}, NOW) == {("a", "h100/spot"): "old"}


def test_a_hold_stays_until_its_job_is_placed_or_the_cluster_is_silent() -> None:
    held = {("a", "h100/spot"): "old"}
    assert choose_holds([waiting("old"), waiting("second")], SEEN, held, NOW) == held
    assert choose_holds([waiting("second")], SEEN, held, NOW) == {("a", "h100/spot"): "second"}
    silent = view((cluster("a"), capacity("a", count=3, fault="no answer")))
    assert choose_holds([waiting("old")], silent, held, NOW) == {}


def test_only_pools_that_a_job_may_use_and_that_could_hold_it_are_held() -> None:
    assert choose_holds([waiting("never", spot="never")], SEEN, {}, NOW) == {}
    assert choose_holds([waiting("large", min=25)], SEEN, {}, NOW) == {}


def test_other_jobs_are_told_for_whom_a_pool_is_held() -> None:
    seen = dataclasses.replace(SEEN, held={("a", "h100/spot"): "old", ("b", "h100/spot"): "old"})
    spec = job()
    found = place(spec, spec.task[0], seen, NOTHING, NOW)
    assert found.best is None
    assert "the room on h100 spot is held for old, which waited longer" in found.refusals[0].reason
    old = dataclasses.replace(spec, name="old")
    best = place(old, old.task[0], seen, NOTHING, NOW).best
    assert best is not None and best.cluster in ("a", "b")
