"""The model that epochs and runs on Ray nodes are compared with."""

from __future__ import annotations

import pytest
from studies.ray_nodes.control import PHASES, begins_of
from studies.ray_nodes.counted import ReceivedCall
from studies.ray_nodes.model import Happened, model_of, parts_needed


def test_blocks_are_asked_for_where_they_are_and_shared_ones_may_be_read_twice() -> None:
    found = model_of([range(10), range(10, 20), range(19, 30)], [range(10), range(5), []])
    assert (found.block_requests, found.in_vain, found.busiest) == (0, 0, 0)
    assert (found.least_at_source, found.most_at_source) == (20, 21)
    moved = model_of([range(10, 20), range(10)], [range(10), range(10, 20)])
    assert (moved.block_requests, moved.busiest, moved.least_at_source) == (20, 10, 0)
    assert moved.filter_requests == 2 and moved.filter_bytes > 2 * 4 * 10


def test_nodes_that_look_for_unknown_blocks_ask_again_after_two_seconds() -> None:
    needed, held = [range(10), range(10, 20), range(20, 30)], [range(10), [], []]
    at_once = model_of(needed, held, [[], [0.0] * 10, [0.0] * 10])
    later = model_of(needed, held, [[], [0.0] * 10, [0.0] * 9 + [3.0]])
    assert (at_once.filter_requests, later.filter_requests) == (4, 6)


def test_slow_answers_are_waited_for_once() -> None:
    """Filters of the first batch were old before the second came: a node asked the same peers until its round ended."""
    needed, held = [range(10 * node, 10 * node + 10) for node in range(16)], [range(0)] * 16
    found = model_of(needed, held, [[0.0] * 10] * 16, [[1.2]] * 16)
    assert found.filter_requests <= 16 * 15


@pytest.mark.parametrize("epochs_before", [2, 1000])
def test_a_resize_costs_its_ranks_and_as_much_after_many_epochs(epochs_before: int) -> None:
    resized = Happened(before=8, began=[7], steps=4, checkpoints=[True, False], looks=14, epochs_before=epochs_before)
    methods = resized.coordinator_cost().methods
    assert (methods["join"], methods["pause"], methods["view"], methods["begin"]) == (7, 8, 14, 1)
    assert methods["report"] == 4 + 2 + 2, "steps, the epoch that ends, the new world"
    assert methods["knows"] == 2, "of the newest epoch and evaluation"
    assert (methods["request"], methods["changed"]) == (0, 1), "the end of an epoch tells rank 0 of the resize"


def test_ranks_of_the_next_world_read_the_parts_that_they_need() -> None:
    assert parts_needed(4, 3, 8) == [{0, 1}, {1, 2}, {3}]
    cost = Happened(before=4, began=[2], parts=8, part_bytes=1000).part_store_cost()
    assert cost.methods == {"acquire": 8, "keep": 8, "keep_copy": 8, "locate": 4, "fetch": 2}


def test_phases_end_with_the_calls_that_change_them() -> None:
    """By time, a resize would end with the step that its driver sees late."""
    calls: list[ReceivedCall] = []

    def add(method: str, subject: object = "") -> int:
        facts = {"actor": "Coordinator", "pid": 1, "at": float(len(calls)), "took_s": 0.0, "num_bytes": 0, "cpu_s": 0.0}
        calls.append(ReceivedCall(method=method, subject=str(subject), **facts))
        return len(calls) - 1

    begins = [0]
    add("view")
    for size, ends in ((4, "set_target"), (3, "set_target"), (2, "request_stop")):
        add("begin", size)
        add("report", "Started")
        begins.append(add("report", "Reported"))
        add("report", "Reported")
        begins.append(add(ends))
        add("report", "Reported")
    assert begins_of((4, 3, 2), calls) == begins and len(begins) == len(PHASES)
